"""Types of the compiled module; tests/unit/test_stubs.py compares them with it."""

__version__: str

def status_name(status: int) -> str: ...
