"""Sana's prompts in plain code: texts and instructions that are drawn, byte-pair encoding by a table that is drawn, and the
rows of Gemma 2 that are kept."""
import random

from golden_encoders import gemma_config, gemma_states, integers, padded_rows
from golden_files import Case, numbers
from golden_networks import OF_DIFFUSERS
from plain import Array, Weights, cat, narrow, stack

SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]
SPACE = "\u2581"
LETTERS = "abcdefghij.,:-\n" + SPACE
WORDS = ["a", "cab", "face", "bead", "hi jade", "big", "dig, fed", "abc: dab", "cafe\u00e9", "\u732b", "deaf - chief"]


def tokenizer(draw: random.Random) -> tuple:
    """Pieces with their ids, and which two make another one."""
    pieces = SPECIAL + [f"<0x{i:02X}>" for i in range(256)] + list(LETTERS)
    merges, parts = [], list(LETTERS)
    while len(merges) < 25:
        left, right = draw.choice(parts), draw.choice(parts)
        if left + right not in pieces:
            merges.append([left, right])
            parts.append(left + right)
            pieces.append(left + right)
    return {piece: i for i, piece in enumerate(pieces)}, merges


def encoded(text: str, vocabulary: dict, merges: list) -> list:
    parts = []
    for letter in text.replace(" ", SPACE):
        parts += [letter] if letter in vocabulary else [f"<0x{byte:02X}>" for byte in letter.encode()]
    rank = {(left, right): i for i, (left, right) in enumerate(merges)}
    while True:
        found = [(rank[pair], i) for i, pair in enumerate(zip(parts, parts[1:])) if pair in rank]
        if not found:
            return [vocabulary["<bos>"]] + [vocabulary[part] for part in parts]
        at = min(found)[1]
        parts[at:at + 2] = [parts[at] + parts[at + 1]]


def tokenizer_json(vocabulary: dict, merges: list) -> dict:
    own = [{"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
           for i, name in enumerate(SPECIAL)]
    bos = {"id": "<bos>", "type_id": 0}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": own,
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}, "pre_tokenizer": None,
            "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": bos}, {"Sequence": {"id": "A", "type_id": 0}}],
                               "pair": [], "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}}},
            "decoder": None,
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                      "vocab": vocabulary, "merges": merges}}


def sentence(draw: random.Random, most: int) -> str:
    words = [draw.choice(WORDS) for _ in range(draw.randrange(most))]
    return draw.choice(["", " ", "\n"]) + draw.choice([" ", "  "]).join(w.upper() if draw.random() < 0.3 else w for w in words)


def sana_prompt(draw: random.Random) -> Case:
    vocabulary, merges = tokenizer(draw)
    c = {**gemma_config(draw), "vocab_size": len(vocabulary), "num_hidden_layers": 1, "hidden_size": 6}
    case, w, runs = Case("sana_prompt", c, tolerance=OF_DIFFUSERS), Weights(draw), {}
    case.files = {"tokenizer.json": tokenizer_json(vocabulary, merges), "prompts.json": runs}

    def clean(text: str) -> str:
        return text.lower().strip()

    for name in ("first", "second", "third"):
        texts = [sentence(draw, 7) for _ in range(draw.choice([1, 2, 3]))]
        lines = [sentence(draw, 4) + "a: " for _ in range(draw.choice([0, 1, 3]))]
        against = draw.choice(["", sentence(draw, 5), [sentence(draw, 5) for _ in texts]])
        length = draw.choice([2, 5, 12])
        runs[name] = {"prompts": texts, "negative_prompt": against, "complex_human_instruction": lines or None,
                      "max_sequence_length": length}
        lead = "\n".join(lines)
        k = len(encoded(lead, vocabulary, merges)) if lines else 0
        most = k + length - 2 if lines else length
        kept = [0] + list(range(most - length + 1, most))
        prompts = [encoded(lead + clean(text), vocabulary, merges)[:most] for text in texts]
        plain = [encoded(clean(text), vocabulary, merges)[:length] for text in (against if isinstance(against, list) else [against] * len(texts))]

        def rows_of(all_ids: list, places: list) -> Array:
            found = []
            for ids in all_ids:
                x = gemma_states(w, c, ids)[-1]
                found.append(padded_rows(cat([narrow(x, 0, i, 1) for i in places if i < len(ids)]), length))
            return stack(found)

        def padded(all_ids: list, count: int) -> tuple:
            return (integers([ids + [0] * (count - len(ids)) for ids in all_ids]),
                    integers([[int(i < len(ids)) for i in range(count)] for ids in all_ids]))

        out = f"out.{name}."
        case.expected[out + "input_ids"], case.expected[out + "attention_mask"] = padded(prompts, most)
        case.expected[out + "negative_input_ids"], case.expected[out + "negative_attention_mask"] = padded(plain, length)
        case.expected[out + "select"] = numbers(kept, "I64")
        case.expected[out + "prompt_embeds"] = rows_of(prompts, kept).tensor()
        case.expected[out + "prompt_attention_mask"] = integers([[int(i < len(ids)) for i in kept] for ids in prompts])
        case.expected[out + "negative_embeds"] = rows_of(plain, list(range(length))).tensor()
    case.weights = w.tensors()
    return case


KINDS = {"sana_prompt": sana_prompt}
