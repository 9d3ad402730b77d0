"""Tokenisers that merge pairs, CLIP's and Gemma's, in plain code, with vocabularies and texts that are drawn."""
import random
import re

from golden_files import Case

WORD = "\u2581"  # in place of a space


def merged(parts: list, ranks: dict) -> list:
    """The pair of the lowest rank is joined wherever it stands, until no pair has one."""
    while True:
        known = [pair for pair in zip(parts, parts[1:]) if pair in ranks]
        if not known:
            return parts
        best, joined, i = min(known, key=ranks.get), [], 0
        while i < len(parts):
            pair = (parts[i], parts[i + 1]) if i + 1 < len(parts) else None
            joined.append(parts[i] + parts[i + 1] if pair == best else parts[i])
            i += 2 if pair == best else 1
        parts = joined


def draw_merges(draw: random.Random, parts: list, count: int, joins) -> list:
    """Pairs of what stands in the vocabulary already."""
    all_parts, found = list(parts), []
    while len(found) < count:
        pair = draw.choice(all_parts), draw.choice(all_parts)
        whole = pair[0] + pair[1]
        if joins(*pair) and len(whole) < 9 and whole not in all_parts:
            found.append(pair)
            all_parts.append(whole)
    return found


def rows(draw: random.Random, texts: list, ids_of, most: int, pad: int) -> list:
    found = []
    for text in texts:
        length = draw.choice([most, most, draw.randrange(3, 9)])
        ids = ids_of(text, length)
        found.append({"text": text, "ids": ids + [pad] * (length - len(ids)), "n": len(ids)} |
                     ({} if length == most else {"max_length": length}))
    return found


# CLIP


def shown_bytes() -> list:
    """How CLIP writes each byte as a character."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) if b in plain else chr(256 + sum(k not in plain for k in range(b))) for b in range(256)]


CLIP_WORDS = re.compile(r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[a-zà-ÿ]+|[0-9]|[^\sa-zà-ÿ0-9]+")


def clip_tokens(draw: random.Random) -> tuple:
    shown, letters = shown_bytes(), draw.sample("abcdefghijklmnopqrstuvwxyz", 5)
    ends = [letter + "</w>" for letter in letters]
    merges = draw_merges(draw, letters + ends + ["'", "s</w>"], draw.choice([3, 20, 40]),
                         lambda a, b: not a.endswith("</w>"))
    vocab = [*sorted(shown), *(c + "</w>" for c in sorted(shown)), *(a + b for a, b in merges)]
    vocab += ["<|startoftext|>", "<|endoftext|>"]
    ids, ranks = {token: i for i, token in enumerate(vocab)}, {pair: i for i, pair in enumerate(merges)}
    start, end = ids["<|startoftext|>"], ids["<|endoftext|>"]

    def ids_of(text: str, length: int) -> list:
        found = []
        for word in CLIP_WORDS.findall(" ".join(text.split()).lower()):
            if word in ids and word.startswith("<|"):
                found.append(ids[word])
                continue
            parts = [shown[b] for b in word.encode()]
            found += [ids[part] for part in merged(parts[:-1] + [parts[-1] + "</w>"], ranks)]
        return [start, *found[:length - 2], end]

    def word() -> str:
        made = "".join(draw.choice(letters) for _ in range(draw.randrange(1, 9)))
        return draw.choice([made, made, made.upper(), made + "'s", made + "!?", str(draw.randrange(1000)), "\u00e9t\u00e9",
                            "\u4eba", "<|endoftext|>" + made])

    texts = ["", "  "] + [draw.choice([" ", "  ", "\n"]).join(word() for _ in range(draw.randrange(1, 6))) for _ in range(6)]
    most, pad = draw.choice([9, 16, 77]), draw.choice([end, 0])
    files = {"clip/vocab.json": ids, "clip/merges.txt": "\n".join(["#version: 0.2", *(f"{a} {b}" for a, b in merges), ""]),
             "clip/tokenizer_config.json": {"tokenizer_class": "CLIPTokenizer", "model_max_length": most},
             "clip/tokens.json": rows(draw, texts, ids_of, most, pad)}
    return {"folder": "clip", "max_length": most, "padding_side": "right", "pad_id": pad, "bos_id": start, "eos_id": end,
            "unk_id": end, "size": len(vocab)}, files


# Gemma


def gemma_tokens(draw: random.Random) -> tuple:
    letters = draw.sample("abcdefghijklmnopqrstuvwxyz.,\u00e9\u4eba", 7)
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<start>"]
    merges = draw_merges(draw, [*letters, WORD], draw.choice([3, 20, 40]), lambda a, b: True)
    vocab = special + [f"<0x{b:02X}>" for b in range(256)] + [WORD, *letters, *(a + b for a, b in merges)]
    ids, ranks = {token: i for i, token in enumerate(vocab)}, {pair: i for i, pair in enumerate(merges)}
    apart = re.compile("(" + "|".join(re.escape(token) for token in sorted(special, key=len, reverse=True)) + ")")

    def ids_of(text: str, length: int) -> list:
        found = [ids["<bos>"]]
        for part in apart.split(text):
            if part in special:
                found.append(ids[part])
                continue
            for piece in merged(list(part.replace(" ", WORD)), ranks):
                found += [ids[piece]] if piece in ids else [ids[f"<0x{b:02X}>"] for b in piece.encode()]
        return found[:length]

    def word() -> str:
        made = "".join(draw.choice(letters) for _ in range(draw.randrange(1, 9)))
        return draw.choice([made, made, made.upper(), "\u00df" + made, "<start_of_turn>" + made, "\U0001f600"])

    texts = ["", " "] + [draw.choice([" ", "  "]).join(word() for _ in range(draw.randrange(1, 6))) for _ in range(6)]
    most = draw.choice([8, 30, 300])

    def token(name: str) -> dict:
        return {"SpecialToken": {"id": name, "type_id": 0}}

    added = [{"id": ids[name], "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for name in special]
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": ids,
             "merges": [list(pair) for pair in merges] if draw.random() < 0.5 else [" ".join(pair) for pair in merges]}
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
             "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": WORD},
             "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
             "post_processor": {"type": "TemplateProcessing", "single": [token("<bos>"), {"Sequence": {"id": "A", "type_id": 0}}],
                                "pair": [token("<bos>"), {"Sequence": {"id": "A", "type_id": 0}}],
                                "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}}},
             "decoder": None, "model": model}
    files = {"gemma/tokenizer.json": whole, "gemma/tokens.json": rows(draw, texts, ids_of, most, 0),
             "gemma/tokenizer_config.json": {"tokenizer_class": "GemmaTokenizer"}}
    return {"folder": "gemma", "max_length": most, "padding_side": "right", "pad_id": 0, "bos_id": 2, "eos_id": 1, "unk_id": 3,
            "size": len(vocab)}, files


def tokenizers(draw: random.Random) -> Case:
    case = Case("tokenizers", {}, tolerance={"rule": "ids are equal"})
    for name, make in (("clip", clip_tokens), ("gemma", gemma_tokens)):
        case.config[name], files = make(draw)
        case.files |= files

    def alter(files: dict, draw: random.Random) -> None:
        row = draw.choice(files[draw.choice(["clip", "gemma"]) + "/tokens.json"])
        at = draw.randrange(len(row["ids"]))
        row["ids"][at] += 1

    case.alter = alter
    return case


KINDS = {"tokenizers": tokenizers}
