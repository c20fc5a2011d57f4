"""The house rules that a program can check: one direction of imports, light core, file sizes."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ullayers as ul

SOURCE = Path(ul.__file__).parent
# From where data comes in to where results go out; a module imports only from those before it.
FLOW = [
    "packing", "kernels.schema", "kernels.state", "kernels.moments", "kernels.filters",
    "kernels.fresh", "kernels.covariance", "kernels.reference", "kernels.compiling",
    "kernels.choose", "kernels.compiled_fresh", "kernels.fresh_maps", "kernels.fused_fresh",
    "kernels.launch_fresh", "kernels.fresh_kernels", "kernels.fresh_ops",
    "kernels.compiled_state", "kernels.compiled",
    "kernels.small", "kernels.fused_inverse", "kernels.fused_frame", "kernels.frame",
    "core", "health", "statistics", "added_gradient", "base", "running", "calls",
    "layers", "kernels.__main__", "whiten", "spatial", "replay_memory", "eigen", "spectral",
    "estimator",
    "files", "frames", "capture", "video", "seek", "datasets", "camera", "follow", "scene",
    "footage", "models", "results", "checkpoint", "folders", "learn", "runs", "apply", "online",
    "overlay", "export", "charts", "report", "summary", "demo", "baselines", "experiments.names",
    "experiments.processes", "experiments.common", "experiments.heads", "experiments.tracked",
    "experiments.synthetic",
    "experiments.inplane", "experiments.pan", "experiments.pillow", "experiments.walk",
    "experiments.semi", "experiments.parts", "experiments.gridworlds",
    "experiments.slow_objectives", "experiments.slow_training", "experiments.laplacian",
    "experiments.stages", "experiments.recognise", "experiments.layerwise",
    "reproduce", "view", "bench.names", "bench.timing",
    "bench.layers", "bench.curves", "bench.memory", "bench.chart", "bench.growth",
    "bench.sources", "bench.batch", "bench.learners", "bench.peers", "bench.profile",
    "bench.video", "bench.run", "progress", "options", "cli",
]  # fmt: skip
FAST = {"kernels.compiling"}  # the only one that knows of numba
LIGHT = FLOW[: FLOW.index("estimator")]


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name != "__init__.py":
            found[".".join(path.relative_to(SOURCE).with_suffix("").parts)] = path
    return found


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module == "ullayers":
                names |= {f"ullayers.{alias.name}" for alias in node.names}
            else:
                names.add(node.module)
    return names


def test_every_module_has_its_place() -> None:
    assert set(modules()) == set(FLOW)


@pytest.mark.parametrize("name", FLOW)
def test_imports_flow_one_way(name: str) -> None:
    ours = {m.removeprefix("ullayers.") for m in imports(modules()[name]) if "ullayers" in m}
    allowed = {*FLOW[: FLOW.index(name)], "__version__"}
    assert ours <= allowed, f"{name} imports {ours - allowed}, which come after it"


@pytest.mark.parametrize("name", LIGHT)
def test_core_needs_only_torch_numpy_and_scipy(name: str) -> None:
    others = {m.split(".")[0] for m in imports(modules()[name])} - set(sys.stdlib_module_names)
    more = {"triton"} if name.startswith("kernels.fused") else set()  # part of torch for CUDA
    more = {"numba"} if name in FAST else more  # not needed, only fast
    assert others <= {"torch", "numpy", "scipy", "ullayers"} | more


def test_import_is_light() -> None:
    code = (
        "import sys, ullayers\n"
        "print([m for m in ('scipy', 'sklearn', 'matplotlib') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize("path", modules().values(), ids=lambda p: p.name)
def test_files_stay_readable(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 430


def test_every_public_name_has_an_example() -> None:
    for name in ul.__all__:
        thing = getattr(ul, name)
        assert thing.__doc__, name
        if not (isinstance(thing, type) and issubclass(thing, (Exception, ul.Health, ul.Spectrum))):
            assert ">>>" in thing.__doc__, f"{name} has no runnable example"


def test_unknown_names_are_reported() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = ul.Nothing
