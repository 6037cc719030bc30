"""`docs/questions.md`: the views of `uow.spark_sink.views`, each with its question, a query and its definition.

Belongs here: the text around them. Does not belong here: any SQL.
"""

from __future__ import annotations

from pathlib import Path

from uow.spark_sink.views import VIEWS, View

PAGE = Path("docs") / "questions.md"

_HEAD = """\
# Questions people ask

<!-- Written by `make docs` from `spark_sink/views.py`. Do not edit. -->

The tables of `uow sink` answer them: as a page with plots, on the command line, and in a Spark session of your own.

```sh
uow report --tables /lake --out report.html     # one file, for any browser, without server and network
uow sql --tables /lake "SELECT missing, count(*) AS groups FROM incomplete_groups GROUP BY missing"
uow sql --tables /lake                          # the views and their questions
```

```python
from uow.spark_sink.views import register

register(spark, "/lake")  # temporary views in the session: no metastore is needed
spark.sql("SELECT * FROM completion_times ORDER BY took_ms DESC LIMIT 10").show()
```

Each table (`units`, `components`, `rejected` ...) becomes a view of its name over all destinations, or the named ones, with the destination as
its first column. A table or a column that is not there (yet) is empty or null. The views below are made of these; they replace temporary views of
the same names, and a table of the same name is then reached with its schema (`default.units`). A view sees what the sink appends later; call
`register` again after columns or destinations were added.

Moments are Kafka's timestamps of the records: `written_at` is that of the record which the row was made from. `{producer_header}` is the name of the
header that names a component's sender, by default `uow-producer-id`, which clients with `on_refused` send; `--producer-header` and
`register(..., producer_header=)` name another. Without such a header the sender is shown as the component's topic and partition.

## The report

`uow report` computes its numbers in Spark; a page has at most some hundred of them however large the tables are, and what has no place of its own is
counted as *others*. `--since` and `--until` choose by Kafka's timestamp, `--destination` by name, and `--json` prints the numbers instead. With
`-c uow.toml` it also asks the broker for the oldest open groups, which are in the workers' state and in no table.

The page loads nothing and sends nothing: its content security policy forbids both, and lets no script run but its own. Texts of records are shown
escaped and shortened. It follows the browser's light or dark setting, and can be printed. Units emitted again are counted once, by their current
row; a unit that `uow rebuild` has written to a second topic is counted in each.

## The views

"""


def page() -> str:
    """The whole page."""
    return _HEAD + "\n".join(map(_view, VIEWS))


def _view(view: View) -> str:
    return f"""\
### {view.question}

`{view.name}` has a row for {view.row}.

```sql
{view.example}
```

<details><summary>Definition</summary>

```sql
{view.text}
```

</details>
"""
