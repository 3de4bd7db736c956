"""The model alone, beside the card's limits: decode steps with and without graphs, prefill.

    python -m tests.bench.gpu.step [--reps 5] [--dry-run]

Of each step: the time until its tokens are on the host, and what share of it the card's own limits
would need: for decode, reading the weights and the context once; for prefill, the arithmetic.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import torch

from engine.ipc.sampling import SamplingParams
from engine.memory.device_pool import DevicePool
from engine.models.forward_batch import Part, SampleSpec
from engine.models.llama_gpu import LlamaGPU
from engine.models.step_inputs import Limits as StepLimits
from engine.models.step_inputs import StepInputs, make_inputs
from tests.bench.floors import Work, work_of
from tests.bench.gpu.limits import Limits, measure
from tests.bench.gpu.models import RandomSource, config_of
from tests.bench.gpu.place import Site, Table, median, spread, start, write

PAGE = 16
DTYPE = torch.bfloat16
RNG = random.Random(1)


class NoGraphs:
    """Records nothing: every step launches its kernels one by one."""

    def record(self, call: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        raise RuntimeError("this run measures what graphs save")


class Model:
    """One shape on the device, its pool, and steps for it."""

    def __init__(self, site: Site, shape: str, num_tokens: int) -> None:
        self.site, self.config = site, config_of(shape)
        # The interpreter of a dry run does not know bfloat16's products.
        self.dtype = torch.float32 if site.is_dry else DTYPE
        self.source = RandomSource(self.config)
        self.num_pages = num_tokens // PAGE
        self.model = self._made(NoGraphs() if site.is_dry else None)
        self.pool = DevicePool(
            self.model.kv_layout, self.config.num_layers, self.num_pages, site.device
        )
        self.model.bind(self.pool)

    def _made(self, recorder: NoGraphs | None) -> LlamaGPU:
        made = LlamaGPU(self.config, self.dtype, PAGE, self.site.device, recorder)
        made.load(self.source)
        return made

    def without_graphs(self) -> LlamaGPU:
        """Another one with the same weights and pool."""
        made = self._made(NoGraphs())
        made.bind(self.pool)
        return made

    def step(self, count: int, new: int, context: int) -> StepInputs:
        """`count` requests of `context` tokens, the last `new` of them in this step."""
        width = -(-context // PAGE)
        pages = [RNG.randrange(self.num_pages) for _ in range(count * width)]
        spec = SampleSpec(SamplingParams(temperature=0.0), [], [], [])
        ids = [RNG.randrange(self.config.vocab_size) for _ in range(new)]
        parts = [
            Part(ids, context - new, pages[at * width : (at + 1) * width], spec)
            for at in range(count)
        ]
        return make_inputs(parts, StepLimits(1 << 30, self.num_pages, PAGE, context))

    def work(self, count: int, new: int, context: int) -> Work:
        """What such a step must at least read and multiply."""
        size = int(self.dtype.itemsize)
        return work_of(self.config, size, requests=count, new=new, context=context)

    def run(self, model: LlamaGPU, inputs: StepInputs) -> list[float]:
        with torch.inference_mode():
            return self.site.seconds(lambda: model.greedy(inputs))


def decode_rows(model: Model, limits: Limits, shape: str, table: Table) -> None:
    eager = model.without_graphs()
    for context in (5,) if model.site.is_dry else (512, 4096):
        for count in (1, 2) if model.site.is_dry else (1, 8, 32, 128):
            inputs = model.step(count, 1, context)
            took, without = model.run(model.model, inputs), model.run(eager, inputs)
            floor = limits.floor_s(model.work(count, 1, context).bytes)
            table.add(
                model=shape, requests=count, context=context,
                ms=median(took) * 1e3, tok_s=count / median(took),
                percent_of_limit=100 * floor / median(took),
                ms_without_graph=median(without) * 1e3, spread_s=spread(took),
            )  # fmt: skip


def prefill_rows(model: Model, limits: Limits, shape: str, table: Table) -> None:
    for new in (19,) if model.site.is_dry else (512, 2048, 8192):
        took = model.run(model.model, model.step(1, new, new))
        work = model.work(1, new, new)
        floor = limits.floor_s(work.bytes, work.flop)
        table.add(
            model=shape, tokens=new, ms=median(took) * 1e3, tok_s=new / median(took),
            percent_of_limit=100 * floor / median(took),
            tflop_s=work.flop / median(took) / 1e12, spread_s=spread(took),
        )  # fmt: skip


def swap_rows(model: Model, shape: str, table: Table) -> None:
    """What the first decode step after new weights costs: its graph is recorded in it."""
    other = model.without_graphs() if model.site.is_dry else model._made(None)
    inputs = model.step(8, 1, 9)
    other.bind(model.pool)
    with torch.inference_mode():
        started = time.perf_counter()
        other.greedy(inputs)
        first = time.perf_counter() - started
        table.add(
            model=shape, requests=8, first_ms=first * 1e3,
            later_ms=median(model.site.seconds(lambda: other.greedy(inputs))) * 1e3,
        )  # fmt: skip


def main() -> None:
    """Every shape in turn; what is done is written before the next one begins."""
    site = start(__doc__)
    limits = measure(site)
    facts = {"copy_gb_s": limits.bytes_s / 1e9, "product_tflop_s": limits.flops_s / 1e12}
    print(f"limits: {facts}", flush=True)
    decode, prefill, swap = Table("decode"), Table("prefill"), Table("first step after a swap")
    sizes = {"tiny": 512} if site.is_dry else dict.fromkeys(("135m", "8b", "1b"), 200_000)
    for shape, num_tokens in sizes.items():
        model = Model(site, shape, num_tokens)
        decode_rows(model, limits, shape, decode)
        prefill_rows(model, limits, shape, prefill)
        swap_rows(model, shape, swap)
        write(site, "step", [decode, prefill, swap], limits=facts)
        del model
        if not site.is_dry:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
