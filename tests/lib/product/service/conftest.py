"""One service for all tests that can share it: what it serves, and that nothing of it is left, is the same for each."""

import pytest
from real_service import LocalService


@pytest.fixture(scope="session")
def shared_service():
    with LocalService() as service:
        yield service


@pytest.fixture
def service(shared_service):
    yield shared_service
    shared_service.settle()
