"""Trained-token masks against references worked out by hand, for three chat templates."""

import pytest

from nbllm import tokenizer as tokenizer_room
from nbllm.chat import DEFAULT_TEMPLATE, ChatTemplate
from nbllm.errors import DataError
from nbllm.store import Store
from nbllm.tokenizer import Tokenizer

SPECIALS = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "<|begin|>", "<|header|>", "<|/header|>", "<|eot|>"]
CHATML = (  # as SmolLM2 has it: a system message of its own where there is none
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe good<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (  # as Llama 2 and Mistral: the first turn begins the text, the system message stands in the question
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}{{ bos_token }}"
    "{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + (system if loop.first else '') + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] | trim + '</s>' }}{% endif %}{% endfor %}"
)
LLAMA3 = (  # as Llama 3, with its answers marked
    "{{ '<|begin|>' }}{% for message in messages %}"
    "{{ '<|header|>' + message['role'] + '<|/header|>\n\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|eot|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|eot|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|header|>assistant<|/header|>\n\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("store"))
    texts = ["Hello there, how are you? Fine, thanks. Bye now. " * 3] * 50
    return tokenizer_room.train(store, texts, vocab_size=330, name="plain", special=SPECIALS)


def with_template(plain, template, **tokens):
    return Tokenizer(plain.definition, config={**plain.config, **tokens}, chat_template=template, name="chat")


def turns(*pairs, system=None):
    found = [{"role": "system", "content": system}] if system is not None else []
    for question, answer in pairs:
        found += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return found


def reference(tokenizer, pieces):
    """Ids and targets of pieces that say themselves whether they are learnt."""
    ids, targets = [], []
    for text, wanted in pieces:
        new = tokenizer.encode(text, allow_special=True)
        ids += new
        targets += [wanted] * len(new)
    return ids, targets


def check(tokenizer, messages, pieces):
    (example,) = ChatTemplate(tokenizer).examples(messages)
    ids, targets = reference(tokenizer, pieces)
    assert tokenizer.decode(example.ids, skip_special=False) == "".join(text for text, _ in pieces)
    assert list(example.ids) == ids
    assert list(example.targets) == targets


def test_chatml(plain):
    tokenizer = with_template(plain, CHATML, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>")
    start = "<|im_start|>system\nBe good<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    check(tokenizer, turns(("Hi", "Hello there")), [(start, False), ("Hello there<|im_end|>", True), ("\n", False)])
    check(
        tokenizer,
        turns(("Hi", "Hello"), ("Bye", "Bye now"), system="Be kind"),
        [
            ("<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", False),
            ("Hello<|im_end|>", True),
            ("\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n", False),
            ("Bye now<|im_end|>", True),
            ("\n", False),
        ],
    )
    check(  # empty turns on both sides: the end is learnt all the same
        tokenizer,
        turns(("", ""), ("Bye", "")),
        [
            ("<|im_start|>system\nBe good<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n", False),
            ("<|im_end|>", True),
            ("\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n", False),
            ("<|im_end|>", True),
            ("\n", False),
        ],
    )


def test_llama_2_has_one_beginning_and_its_answers_begin_with_the_space(plain):
    tokenizer = with_template(plain, LLAMA2, bos_token="<s>", eos_token="</s>")
    check(
        tokenizer,
        turns(("Hi", "Hello"), ("Bye", ""), system="Be kind"),
        [
            ("<s>[INST] Be kind\nHi [/INST]", False),
            (" Hello</s>", True),
            ("[INST] Bye [/INST]", False),
            (" </s>", True),
        ],
    )
    (example,) = ChatTemplate(tokenizer).examples(turns(("Hi", "Hello")))
    assert list(example.ids).count(tokenizer.bos_id) == 1


def test_llama_3_marks_its_answers(plain):
    tokenizer = with_template(plain, LLAMA3, bos_token="<|begin|>", eos_token="<|eot|>")
    check(
        tokenizer,
        turns(("Hi", "Hello"), ("", "Bye"), system="Be kind"),
        [
            ("<|begin|><|header|>system<|/header|>\n\nBe kind<|eot|>", False),
            ("<|header|>user<|/header|>\n\nHi<|eot|><|header|>assistant<|/header|>\n\n", False),
            ("Hello<|eot|>", True),
            ("<|header|>user<|/header|>\n\n<|eot|><|header|>assistant<|/header|>\n\n", False),
            ("Bye<|eot|>", True),
        ],
    )
    unmarked = LLAMA3.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    messages = turns(("Hi", "Hello"), ("How", "Fine"), ("", ""))
    (marked,) = ChatTemplate(tokenizer).examples(messages)
    (found,) = ChatTemplate(with_template(plain, unmarked, bos_token="<|begin|>", eos_token="<|eot|>")).examples(
        messages
    )
    assert marked == found


def test_an_end_outside_the_mark_is_learnt_too(plain):
    outside = LLAMA3.replace("+ '<|eot|>' }}{% endgeneration %}", "}}{% endgeneration %}{{ '<|eot|>' }}")
    messages = turns(("Hi", "Hello"), ("How", "Fine"))
    made = [
        ChatTemplate(with_template(plain, template, bos_token="<|begin|>", eos_token="<|eot|>")).examples(messages)
        for template in (LLAMA3, outside)
    ]
    assert made[0] == made[1]


def test_special_tokens_typed_in_a_message_stay_text(plain):
    tokenizer = with_template(plain, CHATML, bos_token="<|im_start|>", eos_token="<|im_end|>")
    (example,) = ChatTemplate(tokenizer).examples(turns(("Say <|im_end|>", "I say <|im_end|>"), system="S"))
    end = tokenizer.special_tokens["<|im_end|>"]
    assert list(example.ids).count(end) == 3  # of the three turns, none of the text
    learnt = [id for id, wanted in zip(example.ids, example.targets, strict=True) if wanted]
    assert learnt == [*tokenizer.encode("I say <|im_end|>"), end]


def test_a_template_that_forgets_earlier_thoughts_gives_an_example_an_answer(plain):
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
        "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('|')[-1] }}"
        "{% else %}{{ m['content'] }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    tokenizer = with_template(plain, template, eos_token="<|im_end|>")
    first, second = ChatTemplate(tokenizer).examples(turns(("Hi", "hm|Hello"), ("Bye", "so|Bye")))
    learnt = [
        tokenizer.decode([i for i, w in zip(e.ids, e.targets, strict=True) if w], skip_special=False)
        for e in (first, second)
    ]
    assert learnt == ["hm|Hello<|im_end|>", "so|Bye<|im_end|>"]
    assert "hm|" not in tokenizer.decode(second.ids)


def test_a_template_without_an_end_gets_the_end_of_text(plain):
    template = (
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    tokenizer = with_template(plain, template, eos_token="</s>")
    (example,) = ChatTemplate(tokenizer).examples(turns(("Hi", "Hello")))
    assert example.ids[-1] == tokenizer.eos_id
    assert example.targets[-1]


def test_the_default_template(plain):
    tokenizer = with_template(plain, DEFAULT_TEMPLATE, eos_token="</s>")
    check(
        tokenizer,
        turns(("Hi", "Hello"), ("Bye", "")),
        [
            ("### User:\nHi\n\n### Assistant:\n", False),
            ("Hello</s>", True),
            ("\n\n### User:\nBye\n\n### Assistant:\n", False),
            ("</s>", True),
            ("\n\n", False),
        ],
    )


def test_a_conversation_without_an_answer_is_named(plain):
    tokenizer = with_template(plain, CHATML, eos_token="<|im_end|>")
    with pytest.raises(DataError, match="row 7"):
        ChatTemplate(tokenizer).examples([{"role": "user", "content": "Hi"}], "row 7")
