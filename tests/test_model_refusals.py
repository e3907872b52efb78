"""What people call, and what is refused: one plain line, nothing left half done."""

import pytest
import torch
from test_model import SMALL, batch, randomised

import handgrad as hg
from handgrad.core.errors import ConfigError, ShapeError, UnknownName


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        (torch.tensor([[1, 11]]), "token id 11 at row 0, position 1 is outside the vocabulary of 11"),
        (torch.tensor([[1, 2], [-1, 3]]), "token id -1 at row 1, position 0"),
        (torch.zeros(1, 8, dtype=torch.int64), "8 tokens do not fit the context of 7 positions"),
        (torch.zeros(3, dtype=torch.int64), r"found \(3,\) of int64"),
        (torch.zeros(1, 3), r"found \(1, 3\) of float32"),
    ],
)
def test_input_that_cannot_be_is_refused_in_one_line(tokens, says):
    with pytest.raises(ShapeError, match=says):
        hg.build(SMALL)(tokens)


def test_backward_without_a_loss_is_refused():
    model = hg.build(SMALL)
    with pytest.raises(ConfigError, match="no loss to go back from"):
        model.backward()
    model.loss(batch(0))
    model.backward()
    with pytest.raises(ConfigError, match="no loss to go back from"):
        model.backward()


def test_configurations_that_cannot_be_name_all_problems_at_once():
    with pytest.raises(ConfigError, match=r"n_layers is -1.*dropout is 1\.5"):
        hg.GPT2Config(vocabulary=11, n_layers=-1, dropout=1.5)
    with pytest.raises(ConfigError, match="d_model 10 is not a multiple of n_heads 3"):
        hg.GPT2Config(vocabulary=11, d_model=10, n_heads=3)
    with pytest.raises(UnknownName, match="did you mean 'gelu_tanh'"):
        hg.GPT2Config(vocabulary=11, activation="gelu_tan")


def test_first_values_depend_on_seed_and_name_alone():
    one = hg.build(SMALL, seed=3)
    deeper = hg.build(hg.GPT2Config(**{**vars(SMALL), "n_layers": 3}), seed=3)
    same = [n for n in one.params if not n.endswith(("out.w", "down.w"))]
    assert all(torch.equal(one.params[n], deeper.params[n]) for n in same)
    assert not torch.equal(one.params.flat, hg.build(SMALL, seed=4).params.flat)


def test_misspelt_patterns_and_replacements_are_refused_at_the_end_of_the_block():
    model, tokens = randomised(SMALL), batch(0)
    with (
        pytest.raises(UnknownName, match=r"did you mean 'blocks\.0\.attention\.rho'"),
        hg.watch(model, replace={"blocks.0.attention.rhoo": torch.zeros_like}),
    ):
        model(tokens)
    with pytest.raises(UnknownName, match=r"no signal named 'blokcs\.\*'"), hg.watch(model, "blokcs.*"):
        model(tokens)
    with hg.watch(model, "blocks.0.Delta_mlp"):  # no backward pass went by: nothing can be said
        model(tokens)


@pytest.mark.parametrize("wrong", [lambda x: None, lambda x: 0.0, lambda x: x.float(), lambda x: x.numpy()])
def test_a_replacement_that_is_no_such_tensor_is_refused(wrong):
    model = randomised(SMALL)
    with pytest.raises(ShapeError, match="the replacement of norm is"), hg.watch(model, replace={"norm": wrong}):
        model(batch(0))
    with pytest.raises(ConfigError, match="must be a function of the signal"), hg.watch(model, replace={"norm": 1}):
        pass


def test_a_watch_inside_a_watch_leaves_both_their_signals():
    model = randomised(SMALL)
    with hg.watch(model, "norm", replace={"blocks.1.mlp": torch.zeros_like}) as outer:
        with hg.watch(model, "blocks.*.mlp") as inner:
            model(batch(0))
        model(batch(1))
    assert outer["norm"].shape == (3, 7, 21)
    assert not inner["blocks.1.mlp"].any()
    assert inner["blocks.0.mlp"].any()


def test_a_refused_loss_leaves_nothing_to_go_back_from():
    model = randomised(SMALL)
    model.loss(batch(0))
    with pytest.raises(ShapeError, match=r"targets must be a torch\.int64 tensor"):
        model.loss(batch(0), batch(1).float())
    with pytest.raises(ConfigError, match="no loss to go back from"):
        model.backward()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"targets": [[1]]}, "targets must be a torch.int64 tensor.*found list"),
        ({"targets": torch.zeros(3, 7, dtype=torch.bool)}, "found torch.bool"),
        ({"valid": torch.ones(3, 7)}, "valid must be a torch.bool tensor.*found torch.float32"),
        ({"n_valid": 0}, "n_valid is 0"),
        ({"run": hg.Run(position=-1)}, "first token stands at position -1"),
    ],
)
def test_losses_that_cannot_be_are_refused(how, says):
    with pytest.raises(ShapeError, match=says):
        randomised(SMALL).loss(batch(0), **how)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"seed": -1}, "seed is -1"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"dtype": torch.int64}, "must be a floating one"),
    ],
)
def test_builds_that_cannot_be_are_refused(how, says):
    with pytest.raises(ConfigError, match=says):
        hg.build(SMALL, **how)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("std", "x"),
        ("dropout", None),
        ("bias", "no"),
        ("tied", 2),
        ("n_layers", 10**20),
        ("epsilon", 0),
        ("d_model", 2.0),
    ],
)
def test_fields_of_another_type_or_size_are_refused(field, value):
    with pytest.raises(ConfigError, match=f"{field} is {value!r}, and must be"):
        hg.GPT2Config(**{**vars(SMALL), field: value})


def test_parameters_are_set_whole_or_not_at_all():
    model = randomised(SMALL)
    with pytest.raises(ShapeError, match=r"norm.gamma has the shape \(21,\), found \(5,\)"):
        model.params["norm.gamma"] = torch.ones(5)
