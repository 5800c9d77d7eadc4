from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Public traces and measured tables beside the checkout; tests that need them skip where they are absent."""
    if not SHARED.is_dir():
        pytest.skip("public traces and measurements are not beside this checkout")
    return SHARED
