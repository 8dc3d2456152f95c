"""`pippin join`, as far as it goes before Ray takes over."""

import pytest

from pippin.cli.verbs import join
from pippin.config.errors import ConfigError


@pytest.mark.parametrize("port", ["0", "8265", "10001", "18440", "52365", "70000"])
def test_a_port_that_ray_has_for_itself_is_refused_with_a_sentence(port: str) -> None:
    with pytest.raises(ConfigError, match=f"--port {port} cannot be the cluster's"):
        join.run(["--port", port])
