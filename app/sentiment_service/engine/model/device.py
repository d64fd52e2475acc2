"""Where a model computes: on the CPU, or on one or several GPUs, with ONNX Runtime's options."""

from dataclasses import dataclass

from sentiment_service.engine.machine.gpu import CUDA, CudaGpu, cuda_state
from sentiment_service.errors import UserError

CPU = "CPUExecutionProvider"

# The kernels of attention that ONNX Runtime may choose from on a GPU, with their bits in its option
# `sdpa_kernel` (``AttentionBackend`` in its attention_common.h). It takes the first that can
# compute a node; MATH can compute all. 8 is cuDNN's.
ATTENTION_KERNELS = {"FLASH": 1, "EFFICIENT": 2, "TRT_FUSED": 4, "MATH": 16, "TRT_FLASH": 32}

# What each process takes on a GPU for CUDA's context and kernels: an estimate, not measured.
CONTEXT_MB = 600

# A provider of ONNX Runtime, with its options where they are not the default.
Provider = str | tuple[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Device:
    """The CPU, or the GPUs with these numbers. Each GPU has a copy of the model.

    ``workers`` of the service share each GPU: this process, and others with their own copies.
    """

    gpus: tuple[int, ...] = ()
    workers: int = 1

    @classmethod
    def of(cls, setting: str, workers: int = 1) -> "Device":
        """The device that a valid ``--device`` names. Without numbers, ``cuda`` is the first GPU.

        The numbers are CUDA's. ``CUDA_VISIBLE_DEVICES`` selects and orders the GPUs that have one.
        """
        if setting == "cpu":
            return cls()
        numbers = setting.partition(":")[2] or "0"
        return cls(tuple(map(int, numbers.split(","))), workers)

    def __str__(self) -> str:
        return f"cuda:{','.join(map(str, self.gpus))}" if self.gpus else "cpu"

    @property
    def copies(self) -> int:
        """The number of copies of the model: one on the CPU, else one on each GPU."""
        return len(self.gpus) or 1

    @property
    def provider(self) -> str:
        """ONNX Runtime's name for the kind of device."""
        return CUDA if self.gpus else CPU

    def check(self) -> None:
        """Return if the device is there.

        Raises:
            UserError: CUDA cannot be used, it shows no GPU with one of the numbers, or ONNX
                Runtime does not support that GPU.
        """
        if not self.gpus:
            return
        state = cuda_state()
        if state.problem:
            to_go_on = "to serve without a GPU, use --device cpu"
            raise UserError(f"CUDA cannot be used: {state.refusal}; {to_go_on}")
        if missing := [number for number in self.gpus if number >= len(state.gpus)]:
            shown = ", ".join(f"{number} ({gpu.name})" for number, gpu in enumerate(state.gpus))
            raise UserError(f"there is no GPU {missing[0]}: CUDA shows {shown}")
        for number in self.gpus:
            if problem := state.gpus[number].problem:
                raise UserError(f"GPU {number} is not supported: {problem}; use another GPU")

    def hardware(self) -> str:
        """The names and the memory of the GPUs; empty on the CPU."""
        gpus = self._visible_gpus() if self.gpus else []
        return ", ".join(f"{gpu.name} {gpu.memory_bytes}" for gpu in gpus)

    def providers(self, gpu_memory_mb: int) -> list[Provider]:
        """ONNX Runtime's provider for each session: one on the CPU, else one on each GPU.

        ``gpu_memory_mb`` limits the memory of all workers' sessions on a GPU. 0 means: no limit, or
        all of it for workers that share it. Each gets an equal part.
        """
        if not self.gpus:
            return [CPU]
        options = self.options(gpu_memory_mb)
        return [(CUDA, {"device_id": str(number), **options}) for number in self.gpus]

    def options(self, gpu_memory_mb: int) -> dict[str, str]:
        """The provider's options that are the same for each session; none on the CPU."""
        if not self.gpus:
            return {}
        limit_mb = gpu_memory_mb // self.workers
        if self.workers > 1 and not gpu_memory_mb:
            least = min(gpu.memory_bytes for gpu in self._visible_gpus())
            limit_mb = least // 1_000_000 // self.workers - CONTEXT_MB
        return _cuda_options(limit_mb)

    def _visible_gpus(self) -> list[CudaGpu]:
        return [gpu for number, gpu in enumerate(cuda_state().gpus) if number in self.gpus]


def _cuda_options(memory_mb: int) -> dict[str, str]:
    """Options of ONNX Runtime's CUDA provider, where its defaults do not fit.

    Its defaults fit for the search of convolution algorithms (these models have no convolution),
    for copying on the stream that computes (another stream can race: ONNX Runtime #4829), for CUDA
    graphs, which are off (they need batches of one shape), and for the arena: each growth is
    twice the one before, up to 1 GiB. Growths by what a batch needs (``kSameAsRequested``) leave
    pieces that later batches do not fit in, so memory grows with new shapes (#13500). Each session
    keeps its memory after a batch, since the next would have to allocate it again.
    """
    options = {
        # TF32 keeps 10 bits of a product's inputs. Logits in fp32 would differ from the CPU's, and
        # from those that the export has compared with the checkpoint.
        "use_tf32": "0",
        # The kernels of attention that may be used: all but cuDNN's. On an H100 or newer, cuDNN's
        # would be preferred. They build a graph for each new shape and never free it, and nearly
        # every batch has a new shape.
        "sdpa_kernel": str(sum(ATTENTION_KERNELS.values())),
        # SkipLayerNormalization adds up the squares in fp32, as LayerNormalization does. By
        # default, it adds them up in fp16, where a few large values are too many.
        "enable_skip_layer_norm_strict_mode": "1",
    }
    if memory_mb:
        options["gpu_mem_limit"] = str(memory_mb * 1_000_000)
    return options
