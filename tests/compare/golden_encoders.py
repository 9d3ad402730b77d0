"""Encoders of texts, pictures and speech in plain code, with sizes and options that are drawn."""
import math
import random

from golden_files import Case, Tensor, f32, numbers
from golden_networks import OF_DIFFUSERS
from plain import (Array, Weights, attention, cat, chunks, conv, each, gelu, gelu_tanh, heads, layer_norm, narrow, noise,
                   products, reshape, rms_norm, rotate, softmax, stack, swap, take, tanh, unheads)

NEVER = -math.inf


def embedding(table: Array, ids: list) -> Array:
    width = table.shape[1]
    return take(table, [i * width + k for i in ids for k in range(width)], [len(ids), width])


def prompts(draw: random.Random, count: int, length: int, vocabulary: int) -> tuple:
    """Ids, padded with 0, and how many are real."""
    real = [draw.randrange(1, length + 1) for _ in range(count)]
    return [[draw.randrange(1, vocabulary) if i < n else 0 for i in range(length)] for n in real], real


def integers(rows: list) -> Tensor:
    return Tensor([len(rows), len(rows[0])], [x for row in rows for x in row], "I64")


def masks(real: list, length: int) -> Tensor:
    return integers([[int(i < n) for i in range(length)] for n in real])


def closed(real: int, length: int, head_count: int, open_to=None) -> Array:
    """A bias that leaves out the keys behind the real ones, and those that a query is not open to."""
    one = [0.0 if k < real and (open_to is None or open_to(q, k)) else NEVER for q in range(length) for k in range(length)]
    return Array([head_count, length, length], one * head_count)


# T5 and umT5


def bucket(distance: int, buckets: int, most: int) -> int:
    """Of key - query. The logarithm is one of fp32."""
    half = buckets // 2
    begin, far, exact = (half if distance > 0 else 0), abs(distance), half // 2
    if far < exact:
        return begin + far
    share = f32(f32(math.log(f32(far / exact))) / f32(math.log(most / exact)))
    return begin + min(half - 1, exact + int(f32(share * (half - exact))))


def t5_bias(table: Array, length: int, buckets: int, most: int) -> Array:
    """[heads, length, length]"""
    count = table.shape[1]
    found = [bucket(k - q, buckets, most) for q in range(length) for k in range(length)]
    return take(table, [b * count + h for h in range(count) for b in found], [count, length, length])


def t5_layers(w: Weights, c: dict, ids: list, real: int, names: dict) -> list:
    """The input of each block, and behind them the result."""
    d, inner, n, length = c["dim"], c["attn"], c["heads"], len(ids)
    x, states, bias = embedding(w(names["table"], [c["vocab_size"], d], 1.0), ids), [], None
    for i in range(c["layers"]):
        states.append(x)
        own = {key: name.format(i) for key, name in names.items()}
        if bias is None or c["each_bias"]:
            bias = t5_bias(w(own["bias"], [c["buckets"], n], 1.0), length, c["buckets"], c["distance"])
        y = rms_norm(x, w.norm(own["norm1"], d), c["eps"])
        q, k, v = (heads(w.linear(own["attn"] + part, y, inner, bias=False), n) for part in "qkv")
        y = unheads(attention(q, k, v, 1.0, bias + closed(real, length, n)))
        x = x + w.linear(own["attn"] + "o", y, d, bias=False)
        y = rms_norm(x, w.norm(own["norm2"], d), c["eps"])
        y = w.linear(own["up"], y, c["ffn"], bias=False) * gelu_tanh(w.linear(own["gate"], y, c["ffn"], bias=False))
        x = x + w.linear(own["down"], y, d, bias=False)
    return [*states, rms_norm(x, w.norm(names["norm"], d), c["eps"])]


def t5_sizes(draw: random.Random) -> dict:
    n = draw.choice([1, 2, 3])
    return {"vocab_size": draw.choice([17, 40]), "dim": draw.choice([5, 8, 12]), "attn": n * draw.choice([3, 4]), "heads": n,
            "ffn": draw.choice([6, 11]), "layers": draw.choice([1, 2, 3]), "buckets": draw.choice([4, 8, 32]), "distance": 128,
            "eps": 1e-6, "each_bias": True}


def umt5(draw: random.Random) -> Case:
    c, w = t5_sizes(draw), Weights(draw)
    config = {"_class_name": "T5Encoder", "vocab_size": c["vocab_size"], "dim": c["dim"], "dim_attn": c["attn"], "dim_ffn": c["ffn"],
              "num_heads": c["heads"], "num_layers": c["layers"], "num_buckets": c["buckets"], "shared_pos": False, "dropout": 0.1}
    names = {"table": "token_embedding.weight", "bias": "blocks.{}.pos_embedding.embedding.weight", "norm1": "blocks.{}.norm1.weight",
             "attn": "blocks.{}.attn.", "norm2": "blocks.{}.norm2.weight", "up": "blocks.{}.ffn.fc1", "gate": "blocks.{}.ffn.gate.0",
             "down": "blocks.{}.ffn.fc2", "norm": "norm.weight"}
    length = draw.choice([1, 7, 23, 60])
    ids, real = prompts(draw, draw.choice([1, 2]), length, c["vocab_size"])
    case = Case("umt5", config, {"in.ids": integers(ids), "in.mask": masks(real, length)}, tolerance={"out": 1e-4})
    hidden = [t5_layers(w, c, row, n, names)[-1] for row, n in zip(ids, real)]
    case.expected["out.hidden"] = stack(hidden).tensor()
    bias = t5_bias(w("blocks.0.pos_embedding.embedding.weight", [c["buckets"], c["heads"]]), length, c["buckets"], 128)
    for name, row in (("", 0), ("_last_row", length - 1)):
        case.expected["out.pos_bias_block0" + name] = reshape(narrow(bias, 1, row, 1), c["heads"], length).tensor()
    case.weights = w.tensors()
    return case


def t5(draw: random.Random) -> Case:
    c, w = t5_sizes(draw), Weights(draw)
    c.update({"each_bias": False, "distance": draw.choice([20, 50, 128]), "eps": 10 ** draw.uniform(-7, -3)})
    config = {"_class_name": "T5EncoderModel", "model_type": "t5", "feed_forward_proj": "gated-gelu", "layer_norm_epsilon": c["eps"],
              "dropout_rate": 0.0, "is_encoder_decoder": False, "use_cache": False, "pad_token_id": 0, "eos_token_id": 1,
              "tie_word_embeddings": False, "vocab_size": c["vocab_size"], "d_model": c["dim"], "d_kv": c["attn"] // c["heads"],
              "d_ff": c["ffn"], "num_layers": c["layers"], "num_heads": c["heads"], "relative_attention_num_buckets": c["buckets"],
              "relative_attention_max_distance": c["distance"]}
    block = "encoder.block.{}.layer."
    names = {"table": "shared.weight", "bias": block + "0.SelfAttention.relative_attention_bias.weight",
             "norm1": block + "0.layer_norm.weight", "attn": block + "0.SelfAttention.", "norm2": block + "1.layer_norm.weight",
             "up": block + "1.DenseReluDense.wi_1", "gate": block + "1.DenseReluDense.wi_0", "down": block + "1.DenseReluDense.wo",
             "norm": "encoder.final_layer_norm.weight"}
    length = draw.choice([1, 7, 23, 40])
    ids, real = prompts(draw, draw.choice([1, 2]), length, c["vocab_size"])
    case = Case("t5", config, {"in.input_ids": integers(ids), "in.attention_mask": masks(real, length)}, tolerance=OF_DIFFUSERS)
    states = [t5_layers(w, c, row, n, names) for row, n in zip(ids, real)]
    case.expected["out.last_hidden_state"] = stack([row[-1] for row in states]).tensor()
    for i in range(c["layers"] + 1):
        case.expected[f"out.hidden_states.{i}"] = stack([row[i] for row in states]).tensor()
    whole = [t5_layers(w, c, row, length, names)[-1] for row in ids]
    case.expected["out.last_hidden_state_nomask"] = stack(whole).tensor()
    case.weights = w.tensors()
    return case


# CLIP's text tower


def quick_gelu(x: Array) -> Array:
    return each(x, lambda a: a / (1 + math.exp(-1.702 * a)), lambda a, y: 0.0)  # nobody asks for its slope


def normed(w: Weights, name: str, x: Array, eps: float) -> Array:
    width = x.shape[-1]
    return layer_norm(x, w.norm(name + ".weight", width), w(name + ".bias", [width]), eps)


def clip_text(draw: random.Random) -> Case:
    n = draw.choice([1, 2, 3])
    d, most, vocabulary = n * draw.choice([3, 4]), draw.choice([7, 11]), draw.choice([20, 31])
    c = {"_class_name": "CLIPTextModel", "model_type": "clip_text_model", "vocab_size": vocabulary, "hidden_size": d,
         "intermediate_size": draw.choice([5, 16]), "num_hidden_layers": draw.choice([1, 2]), "num_attention_heads": n,
         "max_position_embeddings": most, "hidden_act": "quick_gelu", "layer_norm_eps": 10 ** draw.uniform(-7, -3),
         "eos_token_id": draw.choice([2, vocabulary - 1]), "bos_token_id": vocabulary - 2, "pad_token_id": 1, "projection_dim": 4}
    w, length, root = Weights(draw), draw.randrange(3, most + 1), "text_model."
    ids = []
    for _ in range(draw.choice([1, 3])):  # the end is the highest id, and stands once or is padded with itself
        end = draw.randrange(1, length)
        ids.append([vocabulary - 2] + [draw.randrange(3, vocabulary - 2) for _ in range(end - 1)]
                   + [vocabulary - 1] * (length - end))
    states, pooled = [], []
    for row in ids:
        x = embedding(w(root + "embeddings.token_embedding.weight", [vocabulary, d], 1.0), row)
        x = x + narrow(w(root + "embeddings.position_embedding.weight", [most, d], 0.5), 0, 0, length)
        own = []
        for i in range(c["num_hidden_layers"]):
            own.append(x)
            name = f"{root}encoder.layers.{i}."
            y = normed(w, name + "layer_norm1", x, c["layer_norm_eps"])
            q, k, v = (heads(w.linear(f"{name}self_attn.{p}_proj", y, d), n) for p in "qkv")
            y = unheads(attention(q, k, v, bias=closed(length, length, n, lambda query, key: key <= query)))
            x = x + w.linear(name + "self_attn.out_proj", y, d)
            y = normed(w, name + "layer_norm2", x, c["layer_norm_eps"])
            x = x + w.linear(name + "mlp.fc2", quick_gelu(w.linear(name + "mlp.fc1", y, c["intermediate_size"])), d)
        states.append([*own, x, normed(w, root + "final_layer_norm", x, c["layer_norm_eps"])])
        place = row.index(max(row)) if c["eos_token_id"] == 2 else row.index(c["eos_token_id"])
        pooled.append(reshape(narrow(states[-1][-1], 0, place, 1), d))
    case = Case("clip_text", c, {"in.input_ids": integers(ids)}, tolerance=OF_DIFFUSERS)
    case.expected = {"out.last_hidden_state": stack([row[-1] for row in states]).tensor(), "out.pooler_output": stack(pooled).tensor()}
    for i in range(c["num_hidden_layers"] + 1):
        case.expected[f"out.hidden_states.{i}"] = stack([row[i] for row in states]).tensor()
    case.weights = w.tensors()
    return case


# Gemma 2


def gemma_config(draw: random.Random) -> dict:
    shared = draw.choice([1, 2])
    return {"_class_name": "Gemma2Model", "model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh",
            "rms_norm_eps": 10 ** draw.uniform(-7, -3), "attention_bias": False, "attention_dropout": 0.0,
            "final_logit_softcapping": 30.0, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1,
            "vocab_size": draw.choice([17, 40]), "hidden_size": draw.choice([6, 10, 13]), "intermediate_size": draw.choice([7, 16]),
            "num_hidden_layers": draw.choice([1, 2, 3]), "num_attention_heads": shared * draw.choice([1, 2]),
            "num_key_value_heads": shared, "head_dim": draw.choice([4, 6]), "query_pre_attn_scalar": draw.choice([5, 16]),
            "sliding_window": draw.choice([2, 3, 5]), "rope_theta": draw.choice([100.0, 10000.0]),
            "attn_logit_softcapping": draw.choice([0.5, 3.0])}


def gemma_states(w: Weights, c: dict, ids: list) -> list:
    """The input of each layer, and behind them the result; of real tokens."""
    d, n, groups, size, length = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], len(ids)
    cap, eps = c["attn_logit_softcapping"], c["rms_norm_eps"]

    def norm(name: str, x: Array) -> Array:
        return rms_norm(x, w(name + ".weight", [d], 0.2) + 1, eps)

    angles = [[t * c["rope_theta"] ** (-2 * i / size) for i in range(size // 2)] for t in range(length)]
    x, states = embedding(w("embed_tokens.weight", [c["vocab_size"], d], 0.5), ids) * math.sqrt(d), []
    for i in range(c["num_hidden_layers"]):
        states.append(x)
        name, window = f"layers.{i}.", c["sliding_window"] if i % 2 == 0 else length
        y = norm(name + "input_layernorm", x)
        q, k, v = (heads(w.linear(f"{name}self_attn.{p}_proj", y, m * size, bias=False), m) for p, m in zip("qkv", (n, groups, groups)))
        q, k = rotate(q, angles, True), rotate(k, angles, True)
        k, v = (cat([narrow(a, 0, h * groups // n, 1) for h in range(n)]) for a in (k, v))
        scores = tanh(products(q, k) * (c["query_pre_attn_scalar"] ** -0.5 / cap)) * cap
        scores = scores + closed(length, length, n, lambda query, key: query - window < key <= query)
        y = unheads(products(softmax(scores), swap(v)))
        x = x + norm(name + "post_attention_layernorm", w.linear(name + "self_attn.o_proj", y, d, bias=False))
        y, wide = norm(name + "pre_feedforward_layernorm", x), c["intermediate_size"]
        y = gelu_tanh(w.linear(name + "mlp.gate_proj", y, wide, bias=False)) * w.linear(name + "mlp.up_proj", y, wide, bias=False)
        x = x + norm(name + "post_feedforward_layernorm", w.linear(name + "mlp.down_proj", y, d, bias=False))
    return [*states, norm("norm", x)]


def padded_rows(x: Array, length: int) -> Array:
    missing = length - x.shape[0]
    return cat([x, Array([missing, x.shape[1]], [0.0] * (missing * x.shape[1]))]) if missing else x


def gemma2(draw: random.Random) -> Case:
    c, w, length = gemma_config(draw), Weights(draw), draw.choice([3, 7, 11])
    ids, real = prompts(draw, draw.choice([1, 2]), length, c["vocab_size"])
    case = Case("gemma2", c, {"in.input_ids": integers(ids), "in.attention_mask": masks(real, length)}, tolerance=OF_DIFFUSERS)
    states = [[padded_rows(x, length) for x in gemma_states(w, c, row[:n])] for row, n in zip(ids, real)]
    case.expected["out.last_hidden_state"] = stack([row[-1] for row in states]).tensor()
    for i in range(c["num_hidden_layers"]):
        case.expected[f"out.hidden_states.{i}"] = stack([row[i] for row in states]).tensor()
    case.weights = w.tensors()
    return case


# CLIP's image tower


def cubic(at: float, size: int) -> list:
    """(place, factor) of the four neighbours, with those beyond an end taken from it."""
    a, first = -0.75, math.floor(at)
    t = at - first

    def near(x):
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x):
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    factors = (far(t + 1), near(t), near(1 - t), far(2 - t))
    return [(min(size - 1, max(0, first - 1 + i)), factor) for i, factor in enumerate(factors)]


def resized(image: Array, side: int) -> list:
    _, height, width = image.shape
    down, across = ([cubic((i + 0.5) * n / side - 0.5, n) for i in range(side)] for n in (height, width))
    values = []
    for ch in range(3):
        plane = image.v[ch * height * width:(ch + 1) * height * width]
        lines = [[sum(f * plane[y * width + x] for x, f in near) for near in across] for y in range(height)]
        values += [sum(f * lines[y][x] for y, f in near) for near in down for x in range(side)]
    return values


def clip_vision(draw: random.Random) -> Case:
    n = draw.choice([1, 2])
    d, patch = n * draw.choice([4, 6]), draw.choice([2, 3, 5])
    side, ratio = patch * draw.choice([1, 2, 3]), draw.choice([1, 1.5, 2])
    c = {"_class_name": "VisionTransformer", "image_size": side, "patch_size": patch, "dim": d, "mlp_ratio": ratio, "out_dim": 3,
         "num_heads": n, "num_layers": draw.choice([2, 3]), "pool_type": "token", "pre_norm": True, "post_norm": False,
         "activation": "gelu", "norm_eps": 10 ** draw.uniform(-7, -3), "mean": [f32(draw.uniform(0.3, 0.6)) for _ in range(3)],
         "std": [f32(draw.uniform(0.2, 0.4)) for _ in range(3)]}
    w, count, cells, root = Weights(draw), draw.choice([1, 2]), side // patch, "visual."
    case = Case("clip_vision", c, tolerance={"out": 1e-4, "out.pixels": 1e-5})
    pixels, features, last = [], [], []
    for i in range(count):
        image = Array([3, draw.randrange(2, 20), draw.randrange(2, 20)], [])
        image.v = [f32(draw.uniform(-1, 1)) for _ in range(math.prod(image.shape))]
        case.inputs[f"in.image.{i}"] = image.tensor()
        per = side * side
        pixels.append(Array([3, side, side], [(v * 0.5 + 0.5 - c["mean"][k // per]) / c["std"][k // per]
                                              for k, v in enumerate(resized(image, side))]))
        x = w.conv(root + "patch_embedding", pixels[-1], d, [patch, patch], bias=False, stride=patch)
        x = cat([reshape(w(root + "cls_embedding", [1, 1, d], 0.5), 1, d), swap(reshape(x, d, cells * cells))])
        x = x + reshape(w(root + "pos_embedding", [1, 1 + cells * cells, d], 0.5), -1, d)
        x = normed(w, root + "pre_norm", x, c["norm_eps"])
        for k in range(c["num_layers"]):
            if k == c["num_layers"] - 1:
                features.append(x)
            name = f"{root}transformer.{k}."
            q, key, v = chunks(w.linear(name + "attn.to_qkv", normed(w, name + "norm1", x, c["norm_eps"]), 3 * d), 3)
            x = x + w.linear(name + "attn.proj", unheads(attention(heads(q, n), heads(key, n), heads(v, n))), d)
            y = w.linear(name + "mlp.0", normed(w, name + "norm2", x, c["norm_eps"]), int(d * ratio))
            x = x + w.linear(name + "mlp.2", gelu(y), d)
        last.append(x)
    w(root + "head", [d, 3])
    normed(w, root + "post_norm", last[-1], 1e-5)
    case.expected = {"out.pixels": stack(pixels).tensor(), "out.features": stack(features).tensor(),
                     "out.last_block": stack(last).tensor()}
    case.weights = w.tensors()
    return case


# wav2vec 2


def wav2vec(draw: random.Random) -> Case:
    n, groups = draw.choice([1, 2]), draw.choice([1, 2])
    d, layers = 4 * n, draw.choice([2, 3])
    widths = [draw.choice([3, 4]) for _ in range(layers)]
    c = {"_class_name": "Wav2Vec2ForCTC", "model_type": "wav2vec2", "hidden_size": d, "feat_extract_norm": "layer",
         "feat_extract_activation": "gelu", "conv_dim": widths, "conv_stride": [draw.choice([2, 3]) for _ in widths],
         "conv_kernel": [draw.choice([2, 3, 4]) for _ in widths], "conv_bias": True, "num_conv_pos_embeddings": draw.choice([2, 4, 5]),
         "num_conv_pos_embedding_groups": groups, "num_feat_extract_layers": layers, "num_hidden_layers": draw.choice([1, 2]),
         "intermediate_size": draw.choice([5, 8]), "hidden_act": "gelu", "num_attention_heads": n, "vocab_size": 5,
         "layer_norm_eps": 10 ** draw.uniform(-7, -4), "do_stable_layer_norm": True, "add_adapter": False}
    w, eps, root = Weights(draw), c["layer_norm_eps"], "wav2vec2."
    wave = noise(draw, [draw.randrange(300, 500)], 0.3)
    centre = sum(wave.v) / len(wave.v)
    deviation = math.sqrt(sum((a - centre) ** 2 for a in wave.v) / len(wave.v) + 1e-7)
    given = Array(wave.shape, [(a - centre) / deviation for a in wave.v])
    x = reshape(given, 1, -1)
    for i, (width, stride, kernel) in enumerate(zip(widths, c["conv_stride"], c["conv_kernel"])):
        name = f"{root}feature_extractor.conv_layers.{i}."
        x = swap(gelu(normed(w, name + "layer_norm", swap(w.conv(name + "conv", x, width, [kernel], stride=[stride])), 1e-5)))
    features = x
    x = w.linear(root + "feature_projection.projection", normed(w, root + "feature_projection.layer_norm", swap(x), eps), d)
    taps, name = c["num_conv_pos_embeddings"], root + "encoder.pos_conv_embed.conv."
    v, g = w(name + "weight_v", [d, d // groups, taps]), w(name + "weight_g", [1, 1, taps], 0.3, 1.0)
    lengths = [math.sqrt(sum(a * a for a in v.v[k::taps])) for k in range(taps)]
    weight = v * g / Array([1, 1, taps], lengths)
    y = conv(swap(x), weight, w(name + "bias", [d]), pad=[taps // 2], groups=groups)
    x = x + gelu(swap(narrow(y, 1, 0, x.shape[0])))
    states = []
    for i in range(c["num_hidden_layers"]):
        states.append(x)
        name = f"{root}encoder.layers.{i}."
        y = normed(w, name + "layer_norm", x, eps)
        q, k, value = (heads(w.linear(f"{name}attention.{p}_proj", y, d), n) for p in "qkv")
        x = x + w.linear(name + "attention.out_proj", unheads(attention(q, k, value)), d)
        y = w.linear(name + "feed_forward.intermediate_dense", normed(w, name + "final_layer_norm", x, eps), c["intermediate_size"])
        x = x + w.linear(name + "feed_forward.output_dense", gelu(y), d)
    states.append(normed(w, root + "encoder.layer_norm", x, eps))
    case = Case("wav2vec", c, {"in.waveform": wave.tensor()}, tolerance={"out": 1e-4})
    case.expected = {"out.input_values": given.tensor(), "out.conv_features": features.tensor(), "out.last_before_norm": x.tensor()}
    case.expected.update({f"out.hidden.{i}": state.tensor() for i, state in enumerate(states)})
    before, count = x.shape[0], int(x.shape[0] / 50.0 * 30)
    steady = []
    for state in states:
        at = [i * (before - 1) / max(1, count - 1) for i in range(count)]
        steady.append(Array([count, d], [state.v[min(int(p), before - 1) * d + k] * (1 - p % 1) + state.v[min(int(p) + 1, before - 1) * d + k] * (p % 1)
                                         for p in at for k in range(d)]))
    case.expected["out.feat_30fps"] = stack(steady).tensor()
    case.expected["out.feat_30fps_last"] = stack(steady[-1:]).tensor()
    for frames in draw.sample([5, 7, 16, 80], 2):
        repeat = int(count / (frames * 30 / 16)) + 1
        total = repeat * frames
        step = (total / 16) / total
        rows = [round(k * step * 30) for k in range(total)]
        picked = [state.v[r * d + k] if r < count else 0.0 for state in steady for k in range(d) for r in rows]
        case.expected[f"out.bucket_{frames}"] = Tensor([1, len(steady), d, total], picked)
        case.expected[f"out.indices_fps16_{frames}"] = numbers(rows, "I64")
        case.expected[f"out.num_repeat_{frames}"] = Tensor([], [repeat], "I64")
    case.weights = w.tensors()
    return case


KINDS = {"umt5": umt5, "t5": t5, "clip_text": clip_text, "gemma2": gemma2, "clip_vision": clip_vision, "wav2vec": wav2vec}
