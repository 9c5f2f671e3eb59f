"""Make the text and the tokenizer that torchtitan's debug models expect: `make_assets.py FOLDER`."""

import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SENTENCE = "the model step time of a run on many GPUs is read from its log and compared with those before it"
rng = random.Random(0)
texts = [" ".join(rng.choices(SENTENCE.split(), k=300)) for _ in range(400)]
folder = Path(sys.argv[1])
(folder / "c4_test").mkdir(parents=True, exist_ok=True)
(folder / "tokenizer").mkdir(exist_ok=True)
(folder / "c4_test" / "data.json").write_text("\n".join(json.dumps({"text": text}) for text in texts))
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
ends = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
trainer = trainers.BpeTrainer(
    vocab_size=600,
    special_tokens=[*ends.values()],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
)
tokenizer.train_from_iterator(texts, trainer)
tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
(folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(ends))
