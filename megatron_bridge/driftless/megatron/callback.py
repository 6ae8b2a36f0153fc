# SPDX-License-Identifier: Apache-2.0
"""For Megatron-Bridge (and NeMo on top of it): `pretrain(..., callbacks=[WeightUpdates(args)])`.

A callback in Megatron-Bridge is any object with methods of the names below. Each gets a context
with `state`, `model`, `optimizer` and, after a step, `skipped_iter`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .arguments import Options, options_from
from .checks import check_arguments
from .session import Session


class WeightUpdates:
    """Publishes after every training step. `options`: parsed arguments with our flags (a namespace
    is enough: `argparse.Namespace(update_weight_mode="delta", ...)`), or `Options`. `config`: the
    argument of pretrain(), so that settings without a map are refused before a model is built;
    without it they are refused when training starts. `on_record`: called on the leader with the
    record of each version, as a flat dict."""

    def __init__(
        self,
        options: Any,
        hf_config: dict[str, Any] | None = None,
        config: Any = None,
        on_record: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        check_arguments(options, config, hf_config)
        self._given = options
        self._options = options if isinstance(options, Options) else options_from(options)
        self._hf_config, self._on_record = hf_config, on_record
        self.session: Session | None = None

    def on_train_start(self, context: Any) -> None:
        if self._options is not None:
            self.session = Session(
                context.model,
                self._options,
                self._given,
                self._hf_config,
                getattr(context, "optimizer", None),
                on_record=self._on_record,
            )

    def on_train_step_end(self, context: Any) -> None:
        if self.session is not None:
            self.session.after_step(not getattr(context, "skipped_iter", False))

    def on_train_end(self, context: Any) -> None:
        if self.session is not None:
            self.session.close()
