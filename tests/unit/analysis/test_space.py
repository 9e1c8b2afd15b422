from __future__ import annotations

from run_directories import Builder

import analysis
from analysis.space import Axis, axes
from search_spaces import (
    Choice,
    Constant,
    Float,
    Int,
    Logit,
    Parameter,
    Pow2,
    Rule,
    Space,
    to_dict,
)


def test_every_domain_of_a_stored_space_becomes_an_axis(builder: Builder) -> None:
    space = Space(
        {
            "lr": Parameter(Float(1e-6, 1e-3, log=True)),
            "gamma": Parameter(Logit(0.9, 0.99)),
            "epochs": Parameter(Int(1, 4)),
            "prompts": Parameter(Pow2(32, 128)),
            "mode": Parameter(Choice(("sync", "async"))),
            "seed": Parameter(Constant(3)),
        },
        (Rule("divides", ("epochs", "prompts")),),
    )
    builder.write("space.json", to_dict(space))
    assert list(analysis.load(builder.path).axes)[:6] == list(space)
    assert list(axes(to_dict(space)).values()) == [
        Axis("lr", "float", True, (), 1e-6, 1e-3),
        Axis("gamma", "logit", False, (), 0.9, 0.99),
        Axis("epochs", "int", False, (), 1.0, 4.0),
        # Twice as many is one step, so ratios matter.
        Axis("prompts", "pow2", True, (), 32.0, 128.0),
        Axis("mode", "choice", False, ("sync", "async"), None, None),
        Axis("seed", "constant", False, (3,), None, None),
    ]
