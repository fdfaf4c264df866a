"""Serve a model from a folder that transformers can load, and ask it over HTTP as any client of OpenAI's would."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import torch
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.models.llama_folder import save_llama_folder

torch.manual_seed(0)
folder = Path(tempfile.mkdtemp()) / "my-model"
save_llama_folder(GPT(GPTConfig.tiny(vocabulary_size=256)), folder)  # 256 tokens: each is a byte

options = ["--model", str(folder), "--dtype", "float32", "--blocks", "64", "--port", "0"]
command = [sys.executable, "-m", "threeloops.product.service", *options]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    try:
        address = next(word for word in server.stdout.readline().split() if word.startswith("http"))
        while httpx.get(f"{address}/ready").status_code != 200:
            time.sleep(0.05)  # the model is being loaded
        question = {"model": "my-model", "prompt": "The model ", "max_tokens": 8, "ignore_eos": True}
        answer = httpx.post(f"{address}/v1/completions", json=question).json()
        print(answer["object"], json.dumps(answer["usage"]))
    finally:
        server.terminate()  # it finishes open requests, then ends
print("exit code", server.returncode)
