"""Fixtures: exports of tiny checkpoints, made once for all tests, which must not change them."""

import pytest

from tests.support.checkpoints import ARCHITECTURES, Exported, exported


@pytest.fixture(scope="session", params=ARCHITECTURES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Each of four architectures in turn, exported to fp32 and int8."""
    return exported(tmp_path_factory.getbasetemp(), request.param)


@pytest.fixture(scope="session")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Where one architecture is enough."""
    return exported(tmp_path_factory.getbasetemp(), "roberta")


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Where one is enough, and its token types matter, or its short names."""
    return exported(tmp_path_factory.getbasetemp(), "bert")
