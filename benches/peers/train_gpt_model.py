"""The GPT of examples/train_gpt, layer by layer, in torch; and how dmuon's weights are read into it."""

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 256


class Attention(nn.Module):
    """Causal self-attention with rotary position embeddings."""

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, heads: int, seq_len: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        half = width // heads // 2
        frequency = torch.exp(torch.arange(half) * (-math.log(10_000.0) / half))
        angle = torch.arange(seq_len)[:, None] * frequency
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, width = x.shape

        def split(t: Tensor) -> Tensor:
            return t.view(batch, seq, self.heads, -1).transpose(1, 2)

        query = self.rotate(split(self.q_proj(x)))
        key = self.rotate(split(self.k_proj(x)))
        mixed = F.scaled_dot_product_attention(query, key, split(self.v_proj(x)), is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, seq, width))

    def rotate(self, x: Tensor) -> Tensor:
        low, high = x.chunk(2, dim=-1)
        return torch.cat(
            [low * self.cos - high * self.sin, high * self.cos + low * self.sin], dim=-1
        )


class Mlp(nn.Module):
    """Feed-forward layer with a SiLU gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = math.ceil(math.ceil(width * 8 / 3) / 64) * 64
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, width: int, heads: int, seq_len: int) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(width, eps=1e-5)
        self.attn = Attention(width, heads, seq_len)
        self.mlp_norm = nn.RMSNorm(width, eps=1e-5)
        self.mlp = Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Gpt(nn.Module):
    """Bytes in, mean cross-entropy of the bytes that follow out."""

    def __init__(self, layers: int, width: int, heads: int, seq_len: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Block(width, heads, seq_len) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(inputs)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def matrices(self) -> list[nn.Parameter]:
        """What Muon trains: the projections of the blocks."""
        return [parameter for parameter in self.layers.parameters() if parameter.ndim == 2]

    def others(self) -> list[nn.Parameter]:
        """What AdamW trains beside Muon: embedding, head and norms."""
        matrices = set(self.matrices())
        return [parameter for parameter in self.parameters() if parameter not in matrices]

    def load(self, path: Path) -> None:
        """Takes the weights that dmuon's worker wrote, all of them."""
        theirs = read_safetensors(path)
        for name, parameter in self.named_parameters():
            # Burn calls the scale of a norm gamma, and its linear layers hold [in, out].
            tensor = theirs.pop(name.replace("norm.weight", "norm.gamma"))
            is_linear = parameter.ndim == 2 and name != "embed.weight"
            with torch.no_grad():
                parameter.copy_(tensor.T if is_linear else tensor)
        if theirs:
            raise ValueError(f"{path} holds parameters that this model lacks: {sorted(theirs)}")


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file that holds f32 alone."""
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    values = torch.frombuffer(content, dtype=torch.uint8, offset=start)
    tensors = {}
    for name, entry in json.loads(content[8:start]).items():
        begin, end = entry["data_offsets"]
        tensors[name] = values[begin:end].clone().view(torch.float32).view(entry["shape"])
    return tensors
