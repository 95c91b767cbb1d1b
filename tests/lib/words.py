"""A tokenizer of five words, written to a folder; transformers and tokenizers must be installed."""

from pathlib import Path
from typing import Any

WORDS = {"the": 0, "cat": 1, "sees": 2, "[PAD]": 3, "[END]": 4}


# Settings of small models of transformers, beside such of GPT-2.
BERT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 9}
LLAMA = {**BERT, "num_key_value_heads": 1}


def tokenizer_folder(path: Path, ends: bool = False, **tokens: str) -> str:
    """Write the tokenizer, which puts [END] after each text if ``ends``; ``tokens`` are its ``pad_token`` and so on."""
    import tokenizers
    import transformers

    words: Any = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="the"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    if ends:
        end = ("[END]", WORDS["[END]"])
        words.post_processor = tokenizers.processors.TemplateProcessing(single="$A [END]", special_tokens=[end])
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **tokens).save_pretrained(path)
    return str(path)
