"""What the settings of a server mean for its security: findings for each question that an operator should ask.

`pippin doctor --security` shows the findings for the configuration, `GET /v1/security` those for the running server.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from pippin.api.access.guards import is_loopback
from pippin.api.access.keys import Allowance, Key, Keyring, load_keyring, salts_by_owner
from pippin.config.options.server import ServerOptions
from pippin.core.errors import ServerError

OTHERS: Final = 0o077
"""The bits of a file's mode that let other users of the machine read or write it."""


class SecurityFinding(Struct, frozen=True, kw_only=True):
    """An answer to one question. A warning may be meant so; a problem breaks what SECURITY.md promises."""

    state: Literal["ok", "warning", "problem"]
    text: str


def security_findings(options: ServerOptions) -> list[SecurityFinding]:
    """Every finding for these options, with the key file read as it is now."""
    try:
        keyring = load_keyring(options)
    except ServerError as error:
        return [problem(error.report.message)]
    checks = (_binding, _roles, _limits, _file_modes, _origins, _media, _tools, _downloads, _salts)
    return [finding for check in checks for finding in check(options, keyring)]


def ok(text: str) -> SecurityFinding:
    return SecurityFinding(state="ok", text=text)


def warning(text: str) -> SecurityFinding:
    return SecurityFinding(state="warning", text=text)


def problem(text: str) -> SecurityFinding:
    return SecurityFinding(state="problem", text=text)


def _binding(options: ServerOptions, keyring: Keyring) -> Iterator[SecurityFinding]:
    """Who reaches the server, and whether those need a key."""
    if is_loopback(options.host):
        if keyring:
            yield ok(f"It listens on {options.host} alone, and asks for a key.")
        elif options.allowed_hosts:
            names = ", ".join(options.allowed_hosts)
            yield problem(
                f"It answers to {names} without a key: whoever reaches the proxy of that name may manage it. "
                "Set keys with --api-key-file."
            )
        else:
            yield ok(
                f"It listens on {options.host} alone; every program of this machine may use and manage it."
            )
        return
    if not keyring:
        yield problem(f"Anyone who can reach {options.host} can use it. Set keys with --api-key-file.")
        if options.allow_unauthenticated:
            yield problem("Anyone may manage it too: leave out --allow-unauthenticated.")
    else:
        yield warning(
            f"It listens on {options.host} in plain HTTP, and keys can be read on the way: listen on 127.0.0.1 behind "
            "a proxy with TLS, unless the network is your own."
        )
    if not options.allowed_hosts:
        yield warning("It answers to any Host: name those that lead to it with --allowed-host.")


def _roles(options: ServerOptions, keyring: Keyring) -> Iterator[SecurityFinding]:
    """Who may manage it, and what needs no key."""
    if keyring:
        admins = [key.name for key in keyring.keys if key.is_admin]
        users = len(keyring.keys) - len(admins)
        if admins:
            yield ok(f"{len(keyring.keys)} API keys: administrators {', '.join(admins)}; {users} of users.")
        else:
            yield warning("No API key may manage it: give one `role: admin` in the file of keys.")
        if len(options.api_keys) > 1:
            yield warning("Keys of --api-key have no names, roles or limits: move them to --api-key-file.")
    if options.open_management:
        yield warning(f"Management that needs no administrator: {', '.join(options.open_management)}.")
    if keyring and options.open_paths:
        yield warning(f"Addresses that need no key: {', '.join(options.open_paths)}.")


def _limits(options: ServerOptions, keyring: Keyring) -> Iterator[SecurityFinding]:
    """Whether one caller may take the whole machine, and what the models may take of it."""
    unbounded = [key.name for key in keyring.keys if not key.is_admin and not _is_limited(options, key)]
    if unbounded and len(keyring.keys) > 1:
        yield warning(
            f"Users without a limit: {', '.join(unbounded)}. One of them may take the whole machine: give "
            "them rate_limit or token_rate_limit in the file of keys, or all of them --rate-limit."
        )
    share = (
        f"{options.memory_percent:.0%} of its memory"
        if options.memory_budget_gb is None
        else f"{options.memory_budget_gb:g} GB"
    )
    yield ok(
        f"Models may plan {share} together, and the process of one ends at 1.5 times its plan and 2 GiB "
        "(--memory-budget-gb)."
    )


def _is_limited(options: ServerOptions, key: Key) -> bool:
    allowed = key.allowance or Allowance(options.rate_limit, options.token_rate_limit)
    return bool(allowed.requests or allowed.tokens)


def _media(options: ServerOptions, keyring: Keyring) -> Iterator[SecurityFinding]:
    """What requests may make it connect to, and which files they may name."""
    if options.media_path is not None:
        yield warning(f"Requests may read every file in {options.media_path} (--media-path).")
    if not options.media_fetch or options.offline:
        yield ok("Requests make it connect to nobody.")
        return
    own = [host for host in options.media_hosts if is_loopback(host)]
    if own:
        yield warning(
            f"Requests may make it fetch from this machine itself, on any port: {', '.join(own)} (--media-host)."
        )
    others = [host for host in options.media_hosts if host not in own and host != "*"]
    if others:
        yield ok(f"Media may come from {', '.join(others)}, also where that is on a private network.")
    if "*" in options.media_hosts or not options.media_hosts:
        yield ok("Media may come from any public address, and from no private one that is not named.")


def _file_modes(options: ServerOptions, keyring: Keyring) -> Iterator[SecurityFinding]:
    """Whether other users of the machine can read secret files."""
    found = False
    defaults = options.model_defaults
    for name, given in (
        ("keys", options.api_key_file),
        ("MCP servers", options.mcp_config),
        ("stored responses", options.response_store),
        ("the prefix cache", defaults.cache_dir),
    ):
        path = None if given is None else Path(given).expanduser()
        if path is None or not path.exists():
            continue
        found = True
        if path.stat().st_mode & OTHERS:
            yield warning(f"Other users of this machine may read {path} ({name}): chmod go-rwx {path}")
    if found:
        yield ok("Files of keys, tools, responses and caches were looked at.")


def _origins(options: ServerOptions, keyring: Keyring) -> Iterator[SecurityFinding]:
    """Which web pages may use it."""
    if "*" in options.allowed_origins:
        yield warning("Any web page may use it: name the origins with --allowed-origin instead of *.")
    elif options.allowed_origins:
        yield ok(f"Web pages of {', '.join(options.allowed_origins)} may use it, and no others.")
    else:
        yield ok("No web page of another origin may use it.")


def _tools(options: ServerOptions, keyring: Keyring) -> Iterator[SecurityFinding]:
    """Who may be given the operator's MCP tools."""
    if options.mcp_config is None:
        yield ok("No MCP tools are set up.")
        return
    names = [key.name for key in keyring.keys if key.is_admin or key.mcp_tools]
    may = ", ".join(names) or "nobody"
    if not keyring:
        local = is_loopback(options.host) or options.allow_unauthenticated
        may = "everyone who reaches it" if local else "nobody, as there are no keys"
    if options.mcp_offer == "always":
        yield warning(f"MCP tools are part of every chat of {may}, asked for or not.")
    else:
        yield ok(f"MCP tools are for {may}, where a request asks for them.")


def _downloads(options: ServerOptions, keyring: Keyring) -> Iterator[SecurityFinding]:
    """Who may make it download models, and whether models run code."""
    if options.offline or options.allow_downloads is False:
        yield ok("Requests download nothing.")
    elif options.allow_downloads:
        yield warning("Any request may download a model: --no-allow-downloads leaves that to `pippin pull`.")
    elif is_loopback(options.host) or options.allow_unauthenticated:
        yield ok("Requests of those who may manage it may download models.")
    else:
        yield ok("Requests download nothing.")
    trusting = [entry.path for entry in options.models if entry.options.trust_remote_code]
    if options.model_defaults.trust_remote_code or trusting:
        yield warning(f"Code of models is run: --trust-remote-code ({', '.join(trusting) or 'all models'}).")


def _salts(options: ServerOptions, keyring: Keyring) -> Iterator[SecurityFinding]:
    """Whether callers can learn from answer times what others asked."""
    if salts_by_owner(options, keyring):
        yield ok("Each key has a prefix cache of its own.")
    elif len(keyring.keys) > 1:
        yield warning(
            "Keys share a prefix cache, and answer times tell what others asked: leave out --no-cache-salt-per-key."
        )
    elif not keyring and not is_loopback(options.host):
        yield warning("All callers share a prefix cache: answer times tell what others asked. Set keys.")
    else:
        yield ok("The prefix cache is that of one person: nobody is told apart in it.")
