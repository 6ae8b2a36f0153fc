# SPDX-License-Identifier: Apache-2.0
"""The reference engine, with commands as in vllm_host.py. An engine's environment runs it, because
it has transformers."""

import vllm_host


class Host:
    def __init__(self, options):
        import driftless
        import torch
        from driftless.engines import transformers as engines

        torch.set_num_threads(1)
        self.engines = engines
        self.engine = engines.Engine(engines.load_model(options["model"]))
        config = driftless.Config.parse(options["config"])
        self.job = driftless.Job(config, "rollout", launched=False)
        self.target = engines.make_target(self.engine.model, options["model"])
        self.receiver = driftless.Receiver(self.job, self.target)

    def ways(self):
        return sorted({way.way for way in self.target.ways.values()})

    def start(self, prompts, tokens):
        self.engine.start(prompts, tokens)

    def steps(self):
        return self.engine.steps

    def stage(self, timeout_s=300):
        return self.receiver.stage(timeout_s)

    def commit(self):
        return self.engines.update(self.engine, self.receiver).version

    def fail(self):
        """Makes the next commit find a foreign write into the weights that torch did not count."""
        import torch

        parameter = next(self.engine.model.parameters()).data
        kept = parameter.clone()
        self.engine.pause()
        try:
            with torch.no_grad():
                parameter += 1
            self.receiver.commit()
        finally:
            with torch.no_grad():
                parameter.copy_(kept)
            self.engine.resume()

    def checksums(self):
        import worker_probe

        return worker_probe.checksums(self.engine.model)

    def fresh_checksums(self, path):
        import worker_probe

        return worker_probe.checksums(self.engines.load_model(path))

    def stop(self):
        done = self.engine.stop()
        return [
            {"prompt": made.prompt, "spans": [[span.version, span.tokens] for span in made.spans]}
            for made in done
        ]

    def replay(self, generations, paths, later=0):
        """How far each token's logit is below the best one, in a fresh model of the version that
        made it (or of a version that is `later`), after the same tokens."""
        import torch

        models = {int(v): self.engines.load_model(path).eval() for v, path in paths.items()}
        found = []
        for made in generations:
            seen = list(made["prompt"])
            for version, tokens in made["spans"]:
                for token in tokens:
                    with torch.no_grad():
                        model = models[(version + later) % len(models)]
                        logits = model(torch.tensor([seen])).logits[0, -1].float()
                    found.append(float(logits.max() - logits[token]))
                    seen.append(token)
        return found


if __name__ == "__main__":
    vllm_host.main(Host)
