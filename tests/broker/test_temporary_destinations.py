"""Topics that a connection makes for itself (R-10)."""

from __future__ import annotations

from typing import Any

import pytest
from client_places import Topics

import uow
from tests.processes import PATIENCE_S, wait_for
from uow import errors

pytestmark = pytest.mark.broker


def test_a_temporary_destination_goes_with_its_connection_and_is_never_made_again(broker: Any) -> None:
    """A reply comes; then somebody deletes one of two, and the close of the connection the other."""
    topics = Topics(broker.bootstrap)

    def there() -> set[str]:
        return {*topics.admin.list_topics(timeout=PATIENCE_S).topics}

    with uow.connect(broker.bootstrap, reconnect_policy="all") as other:
        with uow.connect(broker.bootstrap, reconnect_policy="all") as connection:
            one, two = connection.temporary_destination(), connection.temporary_destination()
            assert {one, two} <= there()
            reader = connection.messages(one, group=None, start="earliest")
            other.send("none", b"a reply", to=one)
            assert next(reader).value == b"a reply"
            topics.admin.delete_topics([one])[one].result(PATIENCE_S)
            with pytest.raises(errors.DestinationChangedError, match="was deleted"):
                reader.receive(PATIENCE_S)
            with pytest.raises(errors.DestinationChangedError):
                reader.receive(0)
            wait_for(lambda: is_refused(other, one))
        wait_for(lambda: two not in there())
        assert is_refused(other, two)
        assert one not in there()


def is_refused(connection: uow.Connection, topic: str) -> bool:
    """True if it is known to be gone; what is sent a moment before is in doubt, or waits."""
    try:
        connection.send("none", b"late", to=topic)
    except errors.DestinationUnavailableError:
        return True
    except (errors.ReconnectTimeoutError, errors.AmbiguousSendError):
        return False
    return False
