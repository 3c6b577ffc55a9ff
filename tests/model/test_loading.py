"""Loading: what is wrong with a checkpoint is said with the weight, the file and both shapes."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.errors import ConfigError, UnsupportedModelError
from octavo.model.loading import load_spec, resolve_dtype, resolve_model
from tests.model.builders import CPU, load, save_llama


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_llama(tmp_path)
    return tmp_path


def rewrite(path: Path, change: str, name: str) -> None:
    file = path / "model.safetensors"
    tensors = load_file(file)
    if change == "drop":
        del tensors[name]
    elif change == "add":
        tensors[name] = torch.zeros(3)
    else:
        tensors[name] = torch.zeros(5, 7)
    save_file(tensors, file)


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        ("drop", "model.layers.1.self_attn.k_proj.weight", ["k_proj.weight' is missing"]),
        ("add", "model.layers.9.extra.weight", ["'model.layers.9.extra.weight'", "does not have"]),
        ("reshape", "model.norm.weight", ["'model.norm.weight'", "model.safetensors", "[5, 7]", "[48]"]),
    ],
)
def test_weights_that_do_not_fit(llama: Path, change: str, name: str, words: list[str]) -> None:
    rewrite(llama, change, name)
    with pytest.raises(ConfigError) as caught:
        load(llama)
    for word in words:
        assert word in str(caught.value)


def test_tables_that_are_computed_may_be_in_a_checkpoint(llama: Path) -> None:
    rewrite(llama, "add", "model.layers.0.self_attn.rotary_emb.inv_freq")
    load(llama)


@pytest.mark.parametrize("keep", [4, 100, -50])
def test_a_damaged_safetensors_file(llama: Path, keep: int) -> None:
    file = llama / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        load(llama)


def test_a_missing_shard(tmp_path: Path) -> None:
    save_llama(tmp_path, shard_size="60KB")
    sorted(tmp_path.glob("model-*.safetensors"))[1].unlink()
    with pytest.raises(ConfigError, match="model-00002"):
        load(tmp_path)


def test_only_pytorch_files(llama: Path) -> None:
    (llama / "model.safetensors").rename(llama / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="convert them to safetensors"):
        load(llama)


def test_other_architectures_are_refused_by_name(llama: Path) -> None:
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps({**config, "architectures": ["MambaForCausalLM"]}))
    with pytest.raises(UnsupportedModelError, match=r"MambaForCausalLM.*LlamaForCausalLM, MistralForCausalLM"):
        load_spec(resolve_model(str(llama)))
    (llama / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_spec(resolve_model(str(llama)))


def test_end_of_text_tokens_come_from_both_configs(llama: Path) -> None:
    (llama / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert load_spec(resolve_model(str(llama))).eos_token_ids == (7, 9, 2)


def test_longrope_is_refused(tmp_path: Path) -> None:
    save_llama(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_parameters"] = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [1.0] * 4,
        "factor": 2.0,
        "original_max_position_embeddings": 64,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match="longrope"):
        load_spec(resolve_model(str(tmp_path)))


def test_dtypes(llama: Path) -> None:
    spec = load_spec(resolve_model(str(llama)))
    assert resolve_dtype("auto", spec, CPU) == torch.float32
    assert resolve_dtype("bfloat16", spec, CPU) == torch.bfloat16
    assert resolve_dtype("float16", spec, torch.device("cuda")) == torch.float16
    with pytest.raises(ConfigError, match="float16 needs a CUDA device"):
        resolve_dtype("float16", spec, CPU)


TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K"]


def write_gguf(path: Path, kind: str, seed: int = 0) -> dict[str, np.ndarray]:
    """A Llama of one layer whose matrices are stored as `kind`; returns the values they stand for, in GGUF's order."""
    random = np.random.default_rng(seed)
    hidden, heads, kv_heads, inner, vocab = 256, 4, 2, 512, 64
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_token_list([f"t{i}" for i in range(vocab)])
    writer.add_eos_token_id(3)
    shapes = {
        "token_embd.weight": (vocab, hidden),
        "blk.0.attn_q.weight": (hidden, hidden),
        "blk.0.attn_k.weight": (hidden // 2, hidden),
        "blk.0.attn_v.weight": (hidden // 2, hidden),
        "blk.0.attn_output.weight": (hidden, hidden),
        "blk.0.ffn_gate.weight": (inner, hidden),
        "blk.0.ffn_up.weight": (inner, hidden),
        "blk.0.ffn_down.weight": (hidden, inner),
    }
    quant = gguf.GGMLQuantizationType[kind]
    values = {}
    for name, shape in shapes.items():
        stored = _stored(random, shape, quant)
        values[name] = gguf.dequantize(stored, quant) if quant.name not in ("F32", "F16") else stored.astype(np.float32)
        writer.add_tensor(name, stored, raw_dtype=quant)
    for name in ("output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"):
        values[name] = random.normal(size=hidden).astype(np.float32)
        writer.add_tensor(name, values[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def _stored(random: np.random.Generator, shape: tuple[int, int], quant: gguf.GGMLQuantizationType) -> np.ndarray:
    """Content of a type: quantised by the gguf package where it can, random small-scaled blocks where it cannot."""
    values = random.normal(size=shape).astype(np.float32)
    if quant.name == "F32":
        return values
    if quant.name == "F16":
        return values.astype(np.float16)
    try:
        return gguf.quantize(values, quant)
    except NotImplementedError:
        block, block_bytes = gguf.GGML_QUANT_SIZES[quant]
        raw = random.integers(0, 256, size=(shape[0], shape[1] // block, block_bytes), dtype=np.uint8)
        scales = np.frombuffer(np.float16([0.01, 0.02]).tobytes(), np.uint8)
        if quant.name == "Q6_K":
            raw[..., -2:] = scales[:2]
        else:
            raw[..., :4] = scales
        return raw.reshape(shape[0], -1)


def halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """GGUF's order of a Llama's query and key rows (neighbouring rotary pairs) as the two halves of each head."""
    out = np.empty_like(rows)
    size = len(rows) // heads
    for head in range(heads):
        for pair in range(size // 2):
            out[head * size + pair] = rows[head * size + 2 * pair]
            out[head * size + size // 2 + pair] = rows[head * size + 2 * pair + 1]
    return out


@pytest.mark.parametrize("kind", TYPES)
def test_gguf_types_are_dequantised_as_the_gguf_package_does(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    values = write_gguf(path, kind)
    decoder = load(path)
    assert decoder.spec.tie_word_embeddings
    assert decoder.spec.eos_token_ids == (3,)
    slots = decoder.slots()
    expected = {
        "embedding.weight": values["token_embd.weight"],
        "final_norm.weight": values["output_norm.weight"],
        "layers.0.q.weight": halves(values["blk.0.attn_q.weight"], 4),
        "layers.0.k.weight": halves(values["blk.0.attn_k.weight"], 2),
        "layers.0.v.weight": values["blk.0.attn_v.weight"],
        "layers.0.o.weight": values["blk.0.attn_output.weight"],
        "layers.0.gate.weight": values["blk.0.ffn_gate.weight"],
        "layers.0.up.weight": values["blk.0.ffn_up.weight"],
        "layers.0.down.weight": values["blk.0.ffn_down.weight"],
        "layers.0.attention_norm.weight": values["blk.0.attn_norm.weight"],
        "layers.0.mlp_norm.weight": values["blk.0.ffn_norm.weight"],
    }
    assert set(slots) == set(expected)
    for name, want in expected.items():
        assert torch.equal(slots[name], torch.from_numpy(want.copy())), name


def test_a_gguf_type_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "Q5_0")
    with pytest.raises(ConfigError, match=r"token_embd\.weight.*Q5_0.*octavo reads"):
        load(path)


@pytest.mark.parametrize("keep", [0, 3, 20, 400, 2000, -1000])
def test_a_damaged_gguf_file(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "F16")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ConfigError, match=r"model\.gguf"):
        load(path)


def test_rope_factors_in_a_gguf_file(tmp_path: Path) -> None:
    """Llama 3.1's scaling comes as factors that divide the plain frequencies; unread, long contexts are wrong."""
    path = tmp_path / "model.gguf"
    write_gguf(path, "F32")
    plain = load_spec(resolve_model(str(path))).rope.inverse_frequencies
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(tmp_path / "scaled.gguf", "llama")
    for name, field in reader.fields.items():
        if name.startswith(("llama.", "tokenizer.")):
            kind = field.types[0]
            writer.add_key_value(name, field.contents(), kind, field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, 32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    scaled = load_spec(resolve_model(str(tmp_path / "scaled.gguf"))).rope.inverse_frequencies
    np.testing.assert_allclose(scaled, np.array(plain) / np.linspace(1, 8, 32, dtype=np.float32), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_loading_takes_little_memory_beside_the_model(smollm2_path: Path, dtype: str) -> None:
    """Resident memory counts mapped pages: a file left mapped would show here, and so would a second copy."""
    script = textwrap.dedent(
        f"""
        import resource, torch
        torch.set_num_threads(1)
        from octavo.model.loading import load_decoder, load_spec, resolve_model
        import octavo.model.loading.weights
        source = resolve_model({str(smollm2_path)!r})
        spec = load_spec(source)
        torch.ones(8, 8, dtype=torch.bfloat16) @ torch.ones(8, 8, dtype=torch.bfloat16)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        decoder = load_decoder(source, spec, dtype=torch.{dtype}, device=torch.device("cpu"))
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print((after - before) * 1024 / decoder.weight_bytes)
        """
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 1.3


@pytest.mark.slow
def test_the_default_model_equals_transformers(smollm2_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from tests.model.builders import paged_logits

    oracle = AutoModelForCausalLM.from_pretrained(
        str(smollm2_path.parent), gguf_file=smollm2_path.name, dtype=torch.float32
    )
    tokens = torch.randint(0, 49152, (90,)).tolist()
    with torch.inference_mode():
        want = torch.log_softmax(oracle(torch.tensor([tokens])).logits[0], -1)
    got = torch.log_softmax(paged_logits(load(smollm2_path), [tokens], 32)[0], -1)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
