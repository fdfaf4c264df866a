"""What an operator names and how the engine computes with it: the files, the dtype, and the bits of the weights."""

import json

import pytest
import torch
from dispatched import Operators
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.models.llama_folder import save_llama_folder
from threeloops.product.quantized import QuantizedLinear
from threeloops.product.quantized.gguf import TensorType, export_gguf
from threeloops.product.request import Request, Sampling
from threeloops.product.service.engine import EngineSpec
from threeloops.product.service.engine.loading import _check_tokens, _load_model, files_of, load_engine
from threeloops.product.text import ByteTokenizer, load_tokenizer
from trained_tokenizer import SIZE, byte_level, write_tokenizer


def loaded(model, **settings):
    spec = EngineSpec(str(model), device="cpu", **settings)
    return _load_model(spec, files_of(spec.model))


@pytest.fixture
def folder(tmp_path):
    save_llama_folder(GPT(GPTConfig.tiny()).bfloat16(), tmp_path / "folder")
    return tmp_path / "folder"


def bits_of(model):
    return {module.scheme.bits for module in model.modules() if isinstance(module, QuantizedLinear)}


def test_a_name_of_the_course_has_no_files_and_others_must_exist(folder):
    assert files_of("tiny") == ""
    assert files_of(str(folder)) == str(folder)
    with pytest.raises(FileNotFoundError, match="'gpt-4' is not a folder, a GGUF file, or one of model, draft, tiny"):
        files_of("gpt-4")


def test_a_folder_is_computed_in_the_dtype_of_its_files_unless_another_is_named(folder):
    assert loaded(folder).head.weight.dtype == torch.bfloat16
    assert loaded(folder, dtype="float32").head.weight.dtype == torch.float32
    assert not bits_of(loaded(folder))


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_are_rounded_to_the_bits_that_are_named(folder, bits):
    assert bits_of(loaded(folder, quantization=f"int{bits}")) == {bits}


def test_a_gguf_file_keeps_its_bits_and_is_not_rounded_again(tmp_path):
    file = tmp_path / "model.gguf"
    export_gguf(GPT(GPTConfig.tiny()), file, TensorType.Q8_0)
    assert bits_of(loaded(file)) == {8}
    with pytest.raises(ValueError, match="expected a model that is not"):
        loaded(file, quantization="int4")


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"tokenizer_config.json": {"eos_token": "<|eot|>"}}, r"'<\|eot\|>' ends a text, and its number 2000"),
        ({"generation_config.json": {"eos_token_id": [1, 2500]}}, "'' ends a text, and its number 2500"),
        (
            {"tokenizer_config.json": {"bos_token": "<|bot|>", "add_bos_token": True}},
            r"'<\|bot\|>' is put around every text, and its number 2000",
        ),
    ],
    ids=["the tokenizer's end", "an end by its number", "a beginning"],
)
def test_a_token_that_the_model_lacks_must_not_end_or_begin_texts(tmp_path, files, told):
    folder = write_tokenizer(tmp_path, byte_level())
    for name, described in files.items():
        (folder / name).write_text(json.dumps(described))
    with pytest.raises(ValueError, match=told + " is not one of the model's, 0 to 1999"):
        _check_tokens(load_tokenizer(str(folder)), SIZE)


def test_a_token_that_the_model_lacks_may_be_special_otherwise(tmp_path):
    folder = write_tokenizer(tmp_path, byte_level(), pad_token="[PAD]", eos_token="<|im_end|>")
    _check_tokens(load_tokenizer(str(folder)), SIZE)
    _check_tokens(ByteTokenizer(), 256)


@pytest.mark.parametrize("prompt", [(1,), (1, 2, 3)], ids=["one token", "several tokens"])
def test_the_first_client_waits_for_nothing_that_the_second_does_not(tmp_path, prompt):
    save_llama_folder(GPT(GPTConfig.tiny()), tmp_path / "folder")
    engine, _ = load_engine(EngineSpec(str(tmp_path / "folder"), device="cpu"), str(tmp_path / "folder"))
    found = []
    for client in ("first", "second"):
        with Operators() as operators:
            engine.run([Request(client, prompt, Sampling(max_tokens=4), cache_salt=client)])
        found.append(operators.names)
    assert found[0] == found[1]
