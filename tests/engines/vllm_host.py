# SPDX-License-Identifier: Apache-2.0
"""An `LLM` that executes commands: one JSON object per line on stdin, one per line on descriptor 3.

    python vllm_host.py '{"model": ..., "tensor_parallel_size": ..., ...}' 3>replies

vLLM's environment runs it.
"""

import json
import os
import sys
import traceback


class Host:
    def __init__(self, options):
        from vllm import LLM

        self.driver = None
        self.llm = LLM(**options)

    def follow(self, source):
        from driftless.engines import vllm

        self.driver = vllm.follow(self.llm, source)
        return {"version": self.driver.version}

    def replies(self):
        return self.driver.ask("driftless_status")

    def start_staging(self, timeout_s):
        self.driver.start_staging(timeout_s)

    def update(self, timeout_s=300, started=False):
        done = self.driver.update(timeout_s, started)
        return None if done is None else {"version": done.version, "replies": done.replies,
                                          "timings": done.timings}

    def clear(self):
        self.llm.reset_prefix_cache()

    def weight_version(self):
        return self.llm.get_weight_version()

    def rpc(self, method, **arguments):
        return self.llm.collective_rpc(method, kwargs=arguments)

    def generate(self, prompts, tokens):
        from vllm import SamplingParams

        fixed = {"temperature": 0, "ignore_eos": True, "detokenize": False}
        options = SamplingParams(max_tokens=tokens, **fixed)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        done = self.llm.generate(asked, options, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in done]


def main(kind=Host):
    out = os.fdopen(3, "w")

    def reply(answer):
        out.write(json.dumps(answer) + "\n")
        out.flush()

    host = kind(json.loads(sys.argv[1]))
    reply({"value": "ready"})
    for line in sys.stdin:
        command = json.loads(line)
        try:
            reply({"value": getattr(host, command.pop("do"))(**command)})
        except BaseException as problem:
            traceback.print_exc()
            replies = getattr(problem, "replies", None)
            reply({"error": f"{type(problem).__name__}: {problem}", "replies": replies})


if __name__ == "__main__":
    main()
