"""Importing, finding the library, the report, the ABI table."""

import ctypes
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

import nvte
from nvte import _abi, _arrays, _library

PACKAGE = str(pathlib.Path(nvte.__file__).resolve().parent.parent)
CHECKOUT = pathlib.Path(__file__).resolve().parents[3]


def python(*arguments, cwd=None, **environment):
    """Runs Python with this package importable; returns what it printed."""
    path = os.pathsep.join([PACKAGE, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, **environment}
    done = subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=120, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Block())
"""


def test_import_needs_only_python_and_loads_nothing():
    code = BLOCK.format(blocked=("numpy", "torch", "ml_dtypes", "jax")) + (
        "import nvte, nvte.recipe\n"
        "nvte.recipe.DelayedScaling()\n"
        "print([l.split()[-1] for l in open('/proc/self/maps') if 'libnvte' in l or 'libcuda' in l])\n"
    )
    assert python("-c", code).strip() == "[]"


def test_import_is_fast(tmp_path):
    code = "import time; a = time.process_time(); import nvte; print(time.process_time() - a)"
    # With compiled files, as after an installation.
    environment = dict(PYTHONDONTWRITEBYTECODE="", PYTHONPYCACHEPREFIX=str(tmp_path))
    python("-c", code, **environment)
    assert min(float(python("-c", code, **environment)) for _ in range(5)) < 0.05


def test_works_without_ml_dtypes_and_torch():
    pytest.importorskip("numpy")
    code = BLOCK.format(blocked=("torch", "ml_dtypes")) + (
        "import numpy, nvte\n"
        "q = nvte.ops.cast_to_fp8(numpy.ones((2, 3), numpy.float32))\n"
        "print(q.data.dtype, q.data.tolist())\n"
    )
    assert python("-c", code).strip() == "uint8 [[56, 56, 56], [56, 56, 56]]"


def test_tests_are_found_without_torch():
    code = "import sys; sys.modules['torch'] = None; import pytest; sys.exit(pytest.main(['--co', '-q', '-p', 'no:cacheprovider', '.']))"
    assert "test_package.py" in python("-c", code, cwd=os.path.dirname(os.path.abspath(__file__)))


def test_library_that_is_not_there():
    code = (
        "import nvte\n"
        "try: nvte.library_version()\n"
        "except nvte.LibraryNotFound as e: print(isinstance(e, ImportError), e)\n"
    )
    out = python("-c", code, NVTE_LIBRARY="/nowhere/libnvte.so")
    assert out.startswith("True") and "/nowhere/libnvte.so: not there" in out


def test_folders_of_nvidia_packages(tmp_path, monkeypatch):
    for name in ("cu13", "cuda_nvrtc", "empty"):
        (tmp_path / "nvidia" / name).mkdir(parents=True)
    for name in ("cu13", "cuda_nvrtc"):
        (tmp_path / "nvidia" / name / "lib").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/nowhere", str(tmp_path)])
    assert nvte.context.library_dirs() == [str(tmp_path / "nvidia" / name / "lib") for name in ("cuda_nvrtc", "cu13")]


def test_versions_agree():
    assert nvte.library_version() == nvte.__version__
    assert _library.lib.nvte_abi_version() == _abi.NVTE_ABI_VERSION


def test_every_function_is_bound():
    for name in _abi.FUNCTIONS:
        assert getattr(_library.lib, name)


def test_every_operation_has_a_function():
    elsewhere = {"version", "abi_version", "status_name", "last_error", "last_error_code", "set_log", "info", "capability"}
    for name in _abi.FUNCTIONS:
        name = name[len("nvte_") :]
        # Layers are handles: nvte.torch has a module for each.
        if name not in elsewhere and not name.startswith(("context_", "layer_", "linear_", "layernorm_linear_", "layernorm_mlp_")):
            assert callable(getattr(nvte.ops, name)) and name in nvte.ops.__all__, name
    assert all(getattr(nvte.ops, name).__doc__ for name in nvte.ops.__all__)


def test_info():
    report = json.loads(python("-m", "nvte.info", "cpu"))
    assert report["package"] == nvte.__version__ == report["report"]["version"]
    assert report["report"]["context"]["device"] == "cpu"
    assert report["library"] == report["library_tried"][-1].rsplit(": ", 1)[0]
    assert "NVTE_DEBUG" in report["report"]["environment"]
    assert nvte.info.report("cpu")["report"]["target"]


def test_info_says_what_it_takes():
    for program in (["-m", "nvte.info"], ["-c", "import sys; from nvte.info import main; sys.exit(main())"]):
        for asked in ("-h", "--help"):
            assert "python -m nvte.info [cpu|cuda|cuda:N]" in python(*program, asked)
    for given, word in ((["gpu"], "device = 'gpu'"), (["cpu", "cuda"], "takes one device")):
        done = subprocess.run(
            [sys.executable, "-m", "nvte.info", *given], env={**os.environ, "PYTHONPATH": PACKAGE}, capture_output=True, text=True
        )
        assert done.returncode == 2 and done.stdout == "" and word in done.stderr and "Traceback" not in done.stderr


def test_a_type_that_is_none_of_them():
    np = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match="x: float64 is not an element type of nvte: float32, float16, .*e5m2"):
        nvte.ops.cast_to_fp8(np.ones((2, 3)))
    with pytest.raises(TypeError, match="'float64' is not an element type of nvte: float32, float16, .*e5m2"):
        nvte.as_dtype("float64")
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="x: torch.float64 is not an element type of nvte: float32, float16, .*e5m2"):
        nvte.ops.cast_to_fp8(torch.ones(2, 3, dtype=torch.float64))


def test_structs_have_the_golden_layout():
    golden = CHECKOUT / "tests" / "golden" / "layouts.txt"
    if not golden.exists():
        pytest.skip("not in a checkout")
    lines = dict(line.rsplit(" ", 1) for line in golden.read_text().splitlines() if line.strip())
    structs = {n: c for n, c in vars(_abi).items() if isinstance(c, type) and issubclass(c, ctypes.Structure) and c is not ctypes.Structure}
    named = {name.split(".")[0] for name in lines} - {"nvte_api_t"}
    assert set(structs) == named
    for name, structure in structs.items():
        assert ctypes.sizeof(structure) == int(lines[name]), name
        fields = [line for line in lines if line.startswith(f"{name}.")]
        assert fields == [f"{name}.{f}" for f, _ in structure._fields_]
        for field in fields:
            assert getattr(structure, field.split(".")[1]).offset == int(lines[field]), field
    table = [line.split(".")[1] for line in lines if line.startswith("nvte_api_t.")][2:]
    assert [f"nvte_{name}" for name in table] == list(_abi.FUNCTIONS)


def test_abi_table_is_what_the_header_says():
    generator = CHECKOUT / "bindings" / "python" / "abi.py"
    if not generator.exists():
        pytest.skip("not in a checkout")
    spec = importlib.util.spec_from_file_location("nvte_abi_generator", generator)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.render(module.HEADER.read_text())
    if os.environ.get("NVTE_BLESS"):
        module.TARGET.write_text(made)
    assert module.TARGET.read_text() == made, "run bindings/python/abi.py"


def test_packed_tensor_is_the_struct():
    names = [n for n, _ in _abi.nvte_tensor_t._fields_]
    numbers = list(range(1, len(names)))
    made = _abi.nvte_tensor_t.from_buffer_copy(_arrays.pack_tensor(*numbers))
    assert [getattr(made, n) for n in names] == [ctypes.sizeof(_abi.nvte_tensor_t), *numbers]
    with pytest.raises(nvte.Error, match="were expected"):
        _library.packer(_abi.nvte_tensor_t, "rows cols")


def test_log():
    code = (
        "import nvte, gc\n"
        "lines = []\n"
        "nvte.set_log(lines.append)\n"
        "gc.collect()\n"
        "nvte.set_log(None)\n"
        "print('ok')\n"
    )
    assert python("-c", code, NVTE_DEBUG="2").strip() == "ok"
