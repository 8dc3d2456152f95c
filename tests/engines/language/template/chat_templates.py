"""Chat templates in the manners of model families, short enough to read."""

STRICT = (  # alternation, no system role of its own, as the first Mistral models
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% if m['role'] == 'user' %}[Q]{{ m['content'] }}[A]{% elif m['role'] == 'assistant' %}{{ m['content'] }}</s>"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)

ONE_SYSTEM = (  # a system message at the start only
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<{{ m.role }}>{{ m.content | trim }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)

PARTS = (  # contents are lists of parts
    "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

OBJECTS = (  # tools, calls with arguments as objects, results, reasoning of earlier turns
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if enable_thinking is defined and enable_thinking is false %}"
    "<think>\n\n</think>\n\n{% elif enable_thinking %}<think>\n{% endif %}{% endif %}"
)

TEXTS = (  # calls with arguments as JSON text, and only where the content is none
    "{% for m in messages %}{% if m['role'] == 'assistant' and m['content'] is none %}"
    "{% for call in m['tool_calls'] %}<call>{{ call['function']['name'] + ' ' + call['function']['arguments'] }}"
    "{% endfor %}{% else %}<{{ m['role'] }}>{{ m['content'] }}{% endif %}{% endfor %}"
)

DEVELOPER = (
    "{% for m in messages %}{% if m.role == 'developer' %}<dev>{% else %}<{{ m.role }}>{% endif %}"
    "{{ m.content }}{% endfor %}"
)
