"""Every client sends a key to the same partition (W-109, S-20): what Java, Go, JavaScript and Python clients answered, held against ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from uow.processor.kafka.fast_partitioner import fastest_partition_for
from uow.topics.partitioner import partition_for

FOLDER = Path(__file__).parent / "producers"
IDS = [bytes.fromhex(each) for each in json.loads((FOLDER / "ids.json").read_text())]
CLIENTS = sorted(path.stem for path in FOLDER.glob("*-*.json"))


def test_clients_of_four_languages_were_asked() -> None:
    assert {client.split("-")[0] for client in CLIENTS} == {"go", "java", "javascript", "python"}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_sends_each_id_where_we_do_w109(client: str) -> None:
    native = fastest_partition_for()
    for count, said in json.loads((FOLDER / f"{client}.json").read_text())["partitions"].items():
        assert [partition_for(key, int(count)) for key in IDS] == said
        assert [native(key, int(count)) for key in IDS] == said
