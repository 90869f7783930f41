from __future__ import annotations

import dataclasses
import typing


@dataclasses.dataclass(order=True)
class Row:
    city: str
    spend: float = 0.0
    tags: list[str] = dataclasses.field(default_factory=list)
    kind: typing.ClassVar[str] = "row"
    seed: dataclasses.InitVar[int | None] = None


print(Row("Lyon"), [field.name for field in dataclasses.fields(Row)], Row("a") < Row("b"))
print(typing.get_type_hints(Row), Row.__module__, Row)
print(dataclasses.asdict(Row("x", 1.5, ["y"])))
