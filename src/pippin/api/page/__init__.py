"""The page at `/`: a chat, the models, what goes on, and the settings, for people with a browser.

`static/` is the page itself: plain ES modules, which browsers run as they lie here. Begin with `static/main.js`.
`vendor/` has the libraries that it uses, byte for byte as their makers published them; `vendor/VENDORED.json` says
which, by version, licence and digest. What serves both is `api/routes/page.py`.
"""
