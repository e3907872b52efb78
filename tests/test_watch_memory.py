"""`hg.watch`: what it leaves as it was, what memory it holds, how it is shown, and what it refuses."""

import ctypes
import gc
import re
import weakref
from pathlib import Path

import pytest
import torch
from test_model import SMALL, batch, randomised

import handgrad as hg
from handgrad.core import Watch
from handgrad.core.errors import ConfigError, UnknownName

FUSED = (
    "*.q",
    "*.k",
    "*.v",
    "*.out",
    "*.Delta_q",
    "*.Delta_out",
    "*norm*",
    "blocks.*.mlp.*",
    "Delta_[ben]*",
    "embedding",
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("how", [{}, {"positions": -1}])
def test_watching_what_fused_forms_show_changes_no_bit(dtype, how):
    model, tokens = randomised(SMALL, dtype=dtype), batch(3)
    loss, g = model.loss(tokens), model.backward()
    with hg.watch(model, *FUSED, **how) as signals:
        assert torch.equal(model.loss(tokens), loss)
        assert torch.equal(model.backward().flat, g.flat)
    assert {"blocks.0.attention.Delta_q", "blocks.1.attention.out", "Delta_norm"} <= signals.keys()
    assert torch.equal(model.loss(tokens), loss)
    assert torch.equal(model.backward().flat, g.flat)
    with model.running(implementation="explicit"):
        explicit = model.loss(tokens), model.backward()
    with hg.watch(model, "*", **how):
        assert torch.equal(model.loss(tokens), explicit[0])
        assert torch.equal(model.backward().flat, explicit[1].flat)


def rss() -> int:
    """Resident bytes of this process, without what the allocator holds of memory that was given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="reads memory as Linux and glibc count it")
def test_watched_twice_memory_comes_back():
    """Case V08."""
    config = hg.GPT2Config(vocabulary=11, context=512, n_layers=2, n_heads=4, d_model=16)
    model, tokens = hg.build(config), batch(0, rows=4, length=512)

    def plain():
        model.loss(tokens)
        model.backward()
        return rss()

    plain()
    before = plain()
    for _ in range(2):
        with hg.watch(model, "*.attention.*") as signals:
            model.loss(tokens)
            model.backward()
        assert signals.held_bytes > 0.15 * before
        assert rss() > 1.1 * before
        seen = weakref.ref(signals["blocks.0.attention.rho"])
        del signals
        assert seen() is None
        assert abs(plain() - before) < 0.05 * before
    assert model.run.signals is None


def test_only_asked_for_parts_are_held():
    model, tokens = randomised(SMALL), batch(3)
    wholes = []
    original = Watch.see

    def see(self, path, x):
        wholes.append(weakref.ref(x))
        return original(self, path, x)

    Watch.see = see
    try:
        with hg.watch(model, "*.rho", positions=-1, heads=0) as signals:
            model.loss(tokens)
            model.backward()
    finally:
        Watch.see = original
    gc.collect()
    assert len(wholes) > 60
    assert not [x for x in wholes if x() is not None]
    assert signals.held_bytes == 2 * 3 * 7 * 8


def test_a_limit_of_memory_is_kept():
    model, tokens = randomised(SMALL), batch(3)
    one = 3 * 3 * 7 * 7 * 8
    with hg.watch(model, "*.rho", limit_bytes=2 * one) as signals:
        model(tokens)
        model(tokens)  # the second recording replaces the first
    assert signals.held_bytes == 2 * one
    message = (
        r"blocks\.1\.attention\.rho ~ \(3, 3, 7, 7\) would bring what is recorded to 7\.1 kB, .* is 7\.1 kB\. Watch"
    )
    with pytest.raises(ConfigError, match=message), hg.watch(model, "*.rho", limit_bytes=2 * one - 1):
        model(tokens)
    assert model.run.signals is None
    assert model(tokens).shape == (3, 7, 11)
    with hg.watch(model, "*.rho", positions=-1, limit_bytes=one):
        model(tokens)
    for wrong in (-1, 1.5, True, "1 GB"):
        with pytest.raises(ConfigError, match="limit_bytes is"), hg.watch(model, "*.rho", limit_bytes=wrong):
            pass


def test_signals_are_shown_as_a_table_of_which_every_word_is_escaped():
    model, tokens = randomised(SMALL), batch(3)
    with hg.watch(model, "*.rho", "*.Delta_rho") as signals:
        model.loss(tokens)
        model.backward()
    text = repr(signals).splitlines()
    assert re.fullmatch(r"4 signals recorded of \d+ that passed, 14\.1 kB", text[0])
    norm = float(signals["blocks.0.attention.rho"].norm())
    assert text[2].split() == ["blocks.0.attention.rho", "(3,", "3,", "7,", "7)", "float64", f"{norm:.4g}"]
    assert "the loss rises when x rises" in text[-1]
    html = signals._repr_html_()
    assert f'<td style="text-align:left">{norm:.4g}</td>' in html
    assert html.count("<tr>") == 5
    hostile = Watch(("*",))
    hostile.see("<script>alert(1)</script>&\x1b[31m", torch.ones(2))
    assert "<script>" not in hostile._repr_html_()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;" in hostile._repr_html_()
    assert "\x1b" not in repr(hostile)
    many = Watch(("*",))
    for i in range(231):
        many.see(str(i), torch.ones(1))
    assert "… and 201 more" in repr(many)
    assert "… and 31 more" in many._repr_html_()
    assert repr(Watch()) == "0 signals recorded of 0 that passed, 0 bytes"
    assert Watch()._repr_html_().startswith("<table><caption>0 signals")


def test_what_is_no_pattern_and_no_option_is_refused():
    model = randomised(SMALL)
    with pytest.raises(ConfigError, match="not as a list"), hg.watch(model, ["*.rho", "*.q"]):
        pass
    with pytest.raises(ConfigError, match="replace is list"), hg.watch(model, replace=["norm"]):
        pass
    with pytest.raises(ConfigError, match=r"watch takes a model, .* found Linear"), hg.watch(hg.Linear(3, 2), "*"):
        pass
    with pytest.raises(TypeError, match="unexpected keyword argument 'position'"):
        hg.watch(model, "*.rho", position=1)
    with (
        pytest.raises(UnknownName, match=r"did you mean 'blocks\.0\.attention\.rho'"),
        hg.watch(model, "blocks.0.attention.roh", positions=0),
    ):
        model(batch(0))
    with (
        pytest.raises(UnknownName, match="no signal named"),
        hg.watch(model, replace={"blocks.*.mpl": torch.zeros_like}),
    ):
        model(batch(0))
