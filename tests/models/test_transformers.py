"""The language model in Hugging Face's interface says what our own says: tokens, losses, gradients, files."""

import itertools

import pytest
import torch
import transformers

from statespan import generate
from statespan.models import LanguageConfig, LanguageModel, LoadError
from statespan.models.transformers import StatespanCache, StatespanConfig, StatespanForCausalLM
from tests.nn.make import perturb

f64 = torch.float64
PLAIN = {"vocabulary": 30, "d_model": 12, "d_state": 8, "n_layers": 1, "layer": "s4d"}
ADAPTIVE = {**PLAIN, "layer": "s4", "cutoffs": (5, 12), "d_model": 16, "dropout": 0.1}


def make(options=PLAIN, dtype=f64):
    model = perturb(LanguageModel(LanguageConfig(**options), dtype=dtype), 0.3).eval()
    return StatespanForCausalLM.from_model(model)


@pytest.fixture
def prompt():
    return torch.randint(30, (3, 6))


@pytest.mark.parametrize("dtype", [torch.float32, f64])
@pytest.mark.parametrize("options", [PLAIN, ADAPTIVE], ids=["plain", "adaptive"])
def test_greedy_is_our_own(options, dtype, prompt):
    model = make(options, dtype)
    own = generate(model.model, prompt, 25, temperature=0)
    out = model.generate(prompt, max_new_tokens=25, do_sample=False, return_dict_in_generate=True, output_logits=True)
    assert (out.sequences[:, 6:] == own.values).all()
    assert len(own.values.unique()) >= 3
    scores = torch.stack(out.logits, 1).gather(-1, own.values[..., None])[..., 0]
    assert (scores - own.log_probs).abs().max() < 1e-5
    assert out.past_key_values.get_seq_length() == 6 + 24


def test_the_prompt_is_read_once_and_then_step_by_step(prompt, monkeypatch):
    model = make()
    calls = {"prefill": [], "stepper": 0, "step": 0}
    prefill, stepper = model.model.prefill, model.model.stepper

    def counting_prefill(x, *arguments, **options):
        calls["prefill"].append(tuple(x.shape))
        return prefill(x, *arguments, **options)

    def counting_stepper(**options):
        calls["stepper"] += 1
        step = stepper(**options)

        def counted(x, state):
            calls["step"] += 1
            return step(x, state)

        return counted

    monkeypatch.setattr(model.model, "prefill", counting_prefill)
    monkeypatch.setattr(model.model, "stepper", counting_stepper)
    model.generate(prompt, max_new_tokens=9, do_sample=False)
    assert calls == {"prefill": [(3, 6)], "stepper": 1, "step": 8}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", [PLAIN, ADAPTIVE], ids=["plain", "adaptive"])
def test_padding(options, side, prompt):
    """Each row as if it were alone, whatever token the padding has."""
    model, lengths = make(options), [6, 2, 5]
    mask = torch.zeros(3, 6, dtype=torch.int64)
    for row, length in enumerate(lengths):
        mask[row, 6 - length :] = 1
    mask = mask if side == "left" else mask.flip(1)
    x = prompt.masked_fill(mask == 0, 99)
    logits = model(x, attention_mask=mask).logits
    last = model(x, attention_mask=mask, logits_to_keep=2).logits
    assert last.shape == (3, 2, 30)
    assert (last - logits[:, -2:]).abs().max() < 1e-12
    for row in range(3):
        real = mask[row] == 1
        alone = model.model(prompt[row][real][None])[0]
        assert (logits[row][real] - alone).abs().max() < 1e-11 * alone.abs().max()
        assert (logits[row][~real] == 0).all()


@pytest.mark.parametrize("num_beams", [1, 3])
def test_generating_from_prompts_of_unequal_length(num_beams, prompt):
    model = make()
    mask = torch.ones(3, 6, dtype=torch.int64)
    mask[1, :4] = mask[2, :1] = 0
    options = {"max_new_tokens": 12, "num_beams": num_beams, "do_sample": False}
    together = model.generate(prompt, attention_mask=mask, **options)[:, 6:]
    for row in range(3):
        alone = prompt[row][mask[row] == 1][None]
        assert (together[row] == model.generate(alone, **options)[0, alone.shape[1] :]).all()


@pytest.mark.parametrize("options", [PLAIN, ADAPTIVE], ids=["plain", "adaptive"])
def test_beam_search_moves_states(options, prompt):
    model = make(options)
    search = {"max_new_tokens": 10, "num_beams": 4, "num_return_sequences": 4, "do_sample": False}
    found = model.generate(prompt, **search)
    assert (found == model.generate(prompt, use_cache=False, **search)).all()
    greedy = model.generate(prompt, max_new_tokens=10, do_sample=False)
    assert (found[::4] != greedy).any()  # the beams were not all continuations of the first


def test_a_beam_that_keeps_everything_finds_the_likeliest():
    model = make({**PLAIN, "vocabulary": 4})
    prompt = torch.tensor([[1, 3]])
    found = model.generate(prompt, max_new_tokens=3, num_beams=16, do_sample=False, length_penalty=0.0)
    every = torch.tensor([[1, 3, *rest] for rest in itertools.product(range(4), repeat=3)])
    nats = model.model.token_losses(every[:, :-1], every[:, 1:])[:, 1:].sum(1)
    assert found[0].tolist() == every[nats.argmin()].tolist()


def test_sampling(prompt):
    model = make()
    options = {"max_new_tokens": 15, "do_sample": True}
    greedy = model.generate(prompt, max_new_tokens=15, do_sample=False)
    assert (model.generate(prompt, top_k=1, **options) == greedy).all()
    torch.manual_seed(1)
    one = model.generate(prompt, top_p=0.9, temperature=1.5, **options)
    torch.manual_seed(1)
    assert (model.generate(prompt, top_p=0.9, temperature=1.5, use_cache=False, **options) == one).all()
    assert (one != greedy).any()
    x = prompt[:1].expand(4000, 6)
    drawn = model.generate(x, max_new_tokens=1, do_sample=True, top_k=0)[:, 6].bincount(minlength=30) / 4000
    assert (drawn - model(prompt[:1]).logits[0, -1].exp()).abs().max() < 0.04  # five standard deviations


def test_a_cache_is_continued_any_number_of_times(prompt):
    model = make()
    whole = model(prompt).logits
    first = model(prompt[:, :2])
    for _ in range(2):
        block = model(prompt[:, 2:5], past_key_values=first.past_key_values)
        last = model(prompt[:, 5:], past_key_values=block.past_key_values)
        logits = torch.cat([first.logits, block.logits, last.logits], 1)
        assert (logits - whole).abs().max() < 1e-11 * whole.abs().max()
    assert last.past_key_values.get_seq_length() == 6
    rest = model.generate(prompt, max_new_tokens=5, do_sample=False)
    assert (
        model.generate(prompt, past_key_values=block.past_key_values, max_new_tokens=5, do_sample=False) == rest
    ).all()


def test_a_step_has_gradients_also_after_steps_without(prompt):
    model = make()
    with torch.no_grad():
        cache = model(prompt[:, :3]).past_key_values
        cache = model(prompt[:, 3:4], past_key_values=cache).past_key_values
    assert cache.step is not None
    parameters = [p for name, p in model.named_parameters() if name.endswith((".C", "log_dt"))]
    stepped = model(prompt[:, 4:5], past_key_values=cache).logits.square().sum()
    read = model.model.prefill(prompt[:, 4:5], cache.state)[0].square().sum()
    for one, other in zip(torch.autograd.grad(stepped, parameters), torch.autograd.grad(read, parameters), strict=True):
        assert one.abs().max() > 0
        assert (one - other).abs().max() <= 1e-10 * other.abs().max()


def test_reordering():
    cache = StatespanCache((torch.arange(6.0).view(3, 2), (), (torch.tensor([5, 6, 7]), None)), 4)
    cache.reorder_cache(torch.tensor([2, 2, 0]))
    rows, nothing, (numbers, none) = cache.state
    assert rows.tolist() == [[4, 5], [4, 5], [0, 1]]
    assert numbers.tolist() == [7, 7, 5]
    assert (nothing, none) == ((), None)


@pytest.mark.parametrize("side", ["left", "right", None])
@pytest.mark.parametrize("options", [PLAIN, {**ADAPTIVE, "dropout": 0.0}], ids=["plain", "adaptive"])
def test_loss_and_gradients(options, side, prompt):
    model = make(options).train()
    labels, lengths = prompt.clone(), torch.tensor([6, 4, 3])
    labels[0, 2] = -100
    mask = (torch.arange(6) < lengths[:, None]).long() if side else None
    kept = torch.ones(3, 5) if mask is None else mask[:, 1:].clone().to(f64)
    kept[0, 1] = 0
    nats = model.model.token_losses(prompt[:, :-1], prompt[:, 1:])
    expected = (nats * kept).sum() / kept.sum()
    wanted = torch.autograd.grad(expected, list(model.parameters()))
    if side == "left":
        shift = (torch.arange(6) + lengths[:, None]) % 6
        mask, labels, prompt = (tensor.gather(1, shift) for tensor in (mask, labels, prompt))
    out = model(prompt, attention_mask=mask, labels=labels)
    assert abs(out.loss - expected) < 1e-12
    for gradient, own in zip(torch.autograd.grad(out.loss, list(model.parameters())), wanted, strict=True):
        assert (gradient - own).abs().max() <= 1e-11 * own.abs().max()
    half = model(prompt, attention_mask=mask, labels=labels, num_items_in_batch=2 * kept.sum())
    assert abs(half.loss - expected / 2) < 1e-12
    assert out.past_key_values is None
    if not options.get("cutoffs"):
        assert out.logits.shape == (3, 6, 30)
        if side is None:
            assert abs(model.loss_function(out.logits, labels, 30) - expected) < 1e-6  # Hugging Face's, in float32
    else:
        assert out.logits is None
        assert model.eval()(prompt, labels=labels).logits.shape == (3, 6, 30)


def test_labels_that_do_not_count_give_no_loss(prompt):
    out = make()(prompt, labels=torch.full_like(prompt, -100))
    assert out.loss == 0.0
    loss, logits = make()(prompt, labels=prompt, return_dict=False)
    assert loss.ndim == 0
    assert logits.shape == (3, 6, 30)


@pytest.mark.parametrize("options", [PLAIN, ADAPTIVE], ids=["plain", "adaptive"])
def test_round_trip(options, prompt, tmp_path):
    model = make(options)
    model.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json", "generation_config.json", "model.safetensors",
    ]  # fmt: skip
    for load in (StatespanForCausalLM, transformers.AutoModelForCausalLM):
        loaded = load.from_pretrained(tmp_path)
        assert type(loaded) is StatespanForCausalLM
        assert loaded.model.config == model.model.config
        assert loaded.dtype == f64
        assert not loaded.training
        for name, value in model.state_dict().items():
            assert (loaded.state_dict()[name] == value).all()
        # not the same bits: where tensors lie in memory decides how torch adds them up
        assert (loaded(prompt).logits - model(prompt).logits).abs().max() < 1e-12
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert type(config) is StatespanConfig
    assert config.language() == model.model.config
    short = StatespanForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    dtypes = {(".ssm." in name, parameter.dtype) for name, parameter in short.named_parameters()}
    assert dtypes == {(True, torch.float32), (False, torch.bfloat16)}  # as casting our own model does


def test_a_new_model_has_the_values_of_our_own():
    torch.manual_seed(3)
    model = StatespanForCausalLM(StatespanConfig(**PLAIN))
    torch.manual_seed(3)
    own = LanguageModel(LanguageConfig(**PLAIN))
    for name, value in own.state_dict().items():
        assert (model.state_dict()[f"model.{name}"] == value).all()
    assert StatespanForCausalLM.from_model(own).model is own
    assert StatespanForCausalLM.from_model(own).training


def test_a_file_without_all_weights_is_rejected(tmp_path):
    model = make()
    left_out = "model.backbone.norm.weight"
    state = {name: value for name, value in model.state_dict().items() if name != left_out}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(LoadError, match=r"\['model.backbone.norm.weight'\] are missing or have another shape"):
        StatespanForCausalLM.from_pretrained(tmp_path)


def test_pickles_are_not_read(tmp_path):
    model = make()
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        StatespanForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="use_safetensors must be True, got False"):
        StatespanForCausalLM.from_pretrained(tmp_path, use_safetensors=False)


def test_config():
    config = StatespanConfig(vocab_size=9, hidden_size=6, num_hidden_layers=2, eos_token_id=3)
    assert (config.vocabulary, config.d_model, config.n_layers) == (9, 6, 2)
    assert StatespanConfig().language() == LanguageConfig(vocabulary=256)
    assert StatespanConfig.from_dict(config.to_dict()).language() == config.language()
    assert StatespanConfig(transformers_version="99", of_a_later_release=1).of_a_later_release == 1
    with pytest.raises(ValueError, match="options has no 'd_sate'; did you mean d_state"):
        StatespanConfig(d_sate=4)
    with pytest.raises(ValueError, match="d_state must be an even integer >= 2, got 5"):
        StatespanConfig(d_state=5)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("input_ids must be tokens 0 … 29, got 0 … 30", {"input_ids": torch.tensor([[0, 30]])}),
        ("labels must be tokens 0 … 29, got 1 … 77", {"labels": torch.tensor([[0, 1], [0, 77]])}),
        (r"labels must have shape \(2, 2\), got \(2, 3\)", {"labels": torch.zeros(2, 3, dtype=torch.int64)}),
        (r"attention_mask must have shape \(2, 2\), got \(2, 1\)", {"attention_mask": torch.ones(2, 1)}),
        ("attention_mask must have the ones of each row side by side", {
            "input_ids": torch.zeros(1, 3, dtype=torch.int64), "attention_mask": torch.tensor([[1, 0, 1]]),
        }),
        ("logits_to_keep must be an integer >= 0, got -1", {"logits_to_keep": -1}),
    ],
)  # fmt: skip
def test_mistakes(message, options):
    with pytest.raises(ValueError, match=message):
        make()(**{"input_ids": torch.tensor([[0, 1], [2, 3]]), **options})


def test_from_model_takes_language_models_only():
    with pytest.raises(TypeError, match="model must be a LanguageModel, got Linear"):
        StatespanForCausalLM.from_model(torch.nn.Linear(2, 2))
