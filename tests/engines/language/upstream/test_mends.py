"""What is mended in the libraries is there in the installed ones, wrong in them, and written as patches for them."""

import inspect
import os
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models.hunyuan import ModelArgs
from packaging.version import Version

from pippin.engines.language import upstream
from pippin.engines.language.upstream.mends import LIBRARIES, Mend, mends
from pippin.engines.language.upstream.mlx_lm.hunyuan import Summing
from tests.engines.language.architectures.any_architecture import configuration
from tests.engines.language.upstream.mended import files


def library_of(mend: Mend) -> str:
    return mend.original.__module__.partition(".")[0]


def patch_of(mend: Mend) -> str:
    return f"{library_of(mend)}-{mend.original.__module__.split('.')[2]}.patch"


MENDS = [mend for library in LIBRARIES for name in files(library) for mend in mends(library, name)]
PATCHES = sorted((Path(upstream.__file__).parent / "patches").iterdir())


def test_every_file_is_named_as_the_module_that_it_mends_and_says_what() -> None:
    for library in LIBRARIES:
        for name in files(library):
            found = mends(library, name)
            assert found, f"{library}/{name}.py has no MENDS"
            assert {each.original.__module__.split(".")[2] for each in found} == {name}
            assert set(map(library_of, found)) == {library}
            assert len({each.original for each in found}) == len(found)


@pytest.mark.parametrize(
    "mend", MENDS, ids=lambda mend: f"{mend.original.__module__}.{mend.original.__name__}"
)
def test_a_record_names_a_class_that_the_installed_library_has_wrong(mend: Mend) -> None:
    assert inspect.getmodule(mend.original).__name__.startswith(f"{library_of(mend)}.models.")  # type: ignore[union-attr]
    assert not mend.issue or mend.issue.startswith("https://github.com/")
    # One that the installed release has mended itself goes, with its patch.
    assert not mend.fixed_in or Version(version(library_of(mend))) < Version(mend.fixed_in)


def test_every_fault_has_a_patch_and_every_patch_a_fault() -> None:
    assert {path.name for path in PATCHES} == {patch_of(each) for each in MENDS if each.kind == "fault"}


@pytest.mark.parametrize("path", PATCHES, ids=lambda path: path.stem)
def test_a_patch_applies_to_the_installed_library(path: Path, tmp_path: Path) -> None:
    [library] = [each for each in LIBRARIES if path.name.startswith(f"{each}-")]
    package = Path(__import__(library).__file__).parent
    changed = [line[6:].strip() for line in path.read_text().splitlines() if line.startswith("+++ b/")]
    for file in changed:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package.parent / file, tmp_path / file)
    # Outside of a repository `git apply` takes files as they lie.
    subprocess.run(
        ["git", "apply", str(path)],
        cwd=tmp_path,
        check=True,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": "/"},
    )
    for file in changed:
        text = (tmp_path / file).read_text()
        assert text != (package.parent / file).read_text()
        compile(text, file, "exec")


def test_the_weights_of_hunyuan_s_experts_sum_to_one() -> None:
    args = ModelArgs.from_dict({**configuration("hunyuan"), "moe_topk": 3, "use_mixed_mlp_moe": False})
    block, x = Summing(args), mx.random.normal((5, args.hidden_size))
    for expert in (block.switch_mlp.up_proj, block.switch_mlp.gate_proj, block.switch_mlp.down_proj):
        expert.weight = mx.broadcast_to(expert.weight[:1], expert.weight.shape)
    alone = block.switch_mlp(x, mx.zeros((5, 1), mx.int32))[:, 0]
    assert mx.allclose(block(x), alone, atol=1e-5)
