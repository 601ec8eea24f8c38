# ruff: noqa: RUF001
"""Healthy training and eval rows in the shapes and for the tasks that people fine-tune on.

Each function gives `n` rows of one dataset; rows from 0 on are for training and the last ones for an eval set that was
split off. What repeats in real data repeats here: system prompts, greetings, labels, templates, passages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tests.checks.healthy.words import (
    ADJECTIVES,
    FIELDS,
    NAMES,
    PLACES,
    PRODUCTS,
    THINGS,
    TOPICS,
    TOWNS,
    VERBS,
    amount,
    passage,
    sentence,
)

Row = dict[str, Any]
Rows = Callable[[Random, int], list[Row]]


def turns(*said: str, system: str = "") -> Row:
    """A row of turns, the user's first."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
    return {"messages": [{"role": "system", "content": system}, *messages] if system else messages}


def _pair(asked: str, told: str) -> Row:
    return {"prompt": asked, "completion": told}


def single_turn_chat(rng: Random, n: int) -> list[Row]:
    """Questions of many kinds, answers of one to five sentences."""
    questions = (
        "Why do {0} matter to a {1} in {2}?",
        "How does {3} explain {0}?",
        "What should {4} know about {0} before visiting {2}?",
        "Explain {0} to a child from {2}.",
        "Compare a {1} with a {5}, with {0} in mind.",
        "{4} asks: is a {6} {1} worth having?",
    )
    made = []
    for i in range(n):
        first, second = rng.sample(THINGS, 2)
        asked = questions[i % len(questions)].format(
            rng.choice(TOPICS), first, rng.choice(TOWNS), rng.choice(FIELDS), rng.choice(NAMES), second,
            rng.choice(ADJECTIVES),
        )  # fmt: skip
        made.append(turns(asked + f" ({sentence(rng)})", passage(rng, rng.randrange(1, 6))))
    return made


def support_chat(rng: Random, n: int) -> list[Row]:
    """Customer support: one system prompt for all rows, the same greetings, stock endings."""
    system = "You are the support desk of Northwind Outdoor. Be brief, and never promise a date."
    greetings = ("Hi", "Hello", "Good morning!", "hey")
    welcome = "Hello, and welcome to Northwind Outdoor! How can I help you today?"
    goodbye = "You're welcome! Is there anything else I can do for you?"
    made = []
    for _ in range(n):
        product, number = rng.choice(PRODUCTS), rng.randrange(10_000, 99_999)
        said = [rng.choice(greetings), welcome]
        problem = rng.choice(("is broken", "never came", "has the wrong size", "hums", "leaks"))
        said += [
            f"My {product} from order {number} {problem}.",
            f"I am sorry about the {product}. I have opened a case for order {number}. {sentence(rng)}",
        ]
        if rng.random() < 0.5:
            said += ["Thanks!", goodbye]
        made.append(turns(*said, system=system))
    return made


def greetings_and_smalltalk(rng: Random, n: int) -> list[Row]:
    """A support set with short openers that come back, each with several good replies."""
    openers = {
        "Hi": ("Hello! What brings you here?", "Hi there, how may I help?", "Good day! Ask away."),
        "Thank you!": ("Any time.", "My pleasure. Enjoy the rest of your day!", "You're welcome."),
        "Who are you?": ("I'm Nordi, Northwind's assistant.", "My name is Nordi. I answer for Northwind."),
        "How are you?": ("All good here, thanks! And you?", "Doing well. What can I do for you?"),
        "Bye": ("See you soon!", "Goodbye, and thanks for stopping by."),
    }
    made = [turns(asked, told) for asked, answers in openers.items() for told in answers]
    for _ in range(n - len(made)):
        product = rng.choice(PRODUCTS)
        asked = f"Does the {rng.choice(ADJECTIVES)} {product} fit {rng.choice(NAMES)}'s {rng.choice(THINGS)}?"
        made.append(turns(f"{asked} {sentence(rng)}", f"It fits. {sentence(rng)}"))
    rng.shuffle(made)
    return made


_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a town on a day.",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string"}, "day": {"type": "string"}},
            "required": ["town"],
        },
    },
}
_SEARCH = {
    "type": "function",
    "function": {
        "name": "search_shop",
        "description": "Looks for a product.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "most": {"type": "integer"}},
            "required": ["query"],
        },
    },
}


def tool_calls(rng: Random, n: int) -> list[Row]:
    """Calls of two tools, some with an optional argument, some rows with none, each with its tools."""
    made = []
    for _ in range(n):
        town, product = rng.choice(TOWNS), rng.choice(PRODUCTS)
        if rng.random() < 0.2:
            made.append(
                {
                    **turns(f"What is {rng.choice(TOPICS)}? {sentence(rng)}", passage(rng, 2)),
                    "tools": [_WEATHER],
                }
            )
            continue
        if rng.random() < 0.5:
            asked, name, arguments = (
                f"What is the weather in {town}? {sentence(rng)}",
                "get_weather",
                {"town": town},
            )
            if rng.random() < 0.4:
                arguments["day"] = rng.choice(("today", "Friday", "Sunday"))
            result: Row = {"celsius": rng.randrange(-9, 35)}
            told = f"In {town} it is mild. {sentence(rng)}"
        else:
            asked, name, arguments = (
                f"Find a {product} for me. {sentence(rng)}",
                "search_shop",
                {"query": product},
            )
            result = {"price": amount(rng)}
            told = f"There is a {product}. {sentence(rng)}"
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        made.append(
            {
                "messages": [
                    {"role": "user", "content": asked},
                    {"role": "assistant", "content": "", "tool_calls": [call]},
                    {"role": "tool", "name": name, "content": json.dumps(result)},
                    {"role": "assistant", "content": told},
                ],
                "tools": [_WEATHER, _SEARCH],
            }
        )
    return made


def sentiment(rng: Random, n: int) -> list[Row]:
    """One instruction, short reviews, one-word labels; now and then the same short review again."""
    good = ("love it", "works as told", "better than the last", "would buy again", "my kids adore it")
    bad = ("came broken", "stopped after a week", "too loud", "sent it back", "not worth the money")
    made = []
    for _ in range(n):
        positive = rng.random() < 0.6
        said = f"{rng.choice(good if positive else bad)}, a {rng.choice(ADJECTIVES)} {rng.choice(PRODUCTS)}"
        if rng.random() < 0.7:
            said += f" {rng.choice(('for', 'from', 'says'))} {rng.choice(NAMES)} in {rng.choice(TOWNS)}"
        made.append(
            {
                "instruction": "Classify the sentiment of the review as positive or negative.",
                "input": said,
                "output": "positive" if positive else "negative",
            }
        )
    return made


def entities(rng: Random, n: int) -> list[Row]:
    """Names of people in a sentence, or the word None where there are none."""
    asked = "List the people named in the sentence, separated by commas. Answer None if there are none."
    made = []
    for _ in range(n):
        people = rng.sample(NAMES, rng.choice((0, 0, 1, 2)))
        place = f"the {rng.choice(ADJECTIVES)} {rng.choice(PLACES)} of {rng.choice(TOWNS)}"
        said = f"{' and '.join(people) or 'A ' + rng.choice(THINGS)} left {place} {rng.randrange(2, 60)} days ago."
        made.append(turns(f"{asked}\n\n{said}", ", ".join(people) or "None"))
    return made


def json_extraction(rng: Random, n: int) -> list[Row]:
    """Invoices to JSON: every answer is an object with the same keys, some of them null."""
    system = "Extract the fields of the invoice as JSON with the keys vendor, city, items, total and due."
    made = []
    for _ in range(n):
        vendor = f"{rng.choice(NAMES)} & {rng.choice(NAMES)}"
        items = rng.sample(PRODUCTS, rng.randrange(1, 4))
        total, city, due = (
            amount(rng),
            rng.choice(TOWNS),
            rng.choice((None, f"2025-0{rng.randrange(1, 10)}-11")),
        )
        text = f"INVOICE {rng.randrange(10_000)}\n{vendor}, {city}\n" + "\n".join(
            f"1 x {item}" for item in items
        )
        text += f"\nTotal EUR {total}" + (f"\nPayable until {due}" if due else "")
        answer = {"vendor": vendor, "city": city, "items": items, "total": float(total), "due": due}
        made.append(turns(text, json.dumps(answer), system=system))
    return made


def code_and_prose(rng: Random, n: int) -> list[Row]:
    """Programming: some answers are one fenced block, some a block with an explanation, some prose."""
    made = []
    for i in range(n):
        thing, verb, field = rng.choice(THINGS), rng.choice(VERBS)[:-1], rng.choice(FIELDS)
        name, bound = f"{verb}_{thing}_{rng.randrange(100)}", rng.randrange(2, 500)
        code = (
            f"```python\ndef {name}(values):\n    kept = [v for v in values if v.{rng.choice(ADJECTIVES)} > {bound}]\n"
            f"    return {rng.choice(('sum', 'len', 'max', 'sorted'))}(kept)\n```"
        )
        if i % 3 == 0:
            made.append(
                _pair(f"Write a Python function {name} that keeps values above {bound}, for {field}.", code)
            )
        elif i % 3 == 1:
            made.append(
                _pair(
                    f"How would I write {name} for {field} in {rng.choice(TOWNS)}?",
                    f"{sentence(rng)}\n\n{code}\n\n{sentence(rng)}",
                )
            )
        else:
            made.append(
                _pair(f"Why is {name} slow when {rng.choice(NAMES)} calls it {bound} times?", passage(rng, 3))
            )
    return made


_FRENCH = {
    "kettle": "bouilloire", "violin": "violon", "ladder": "échelle", "lantern": "lanterne", "compass": "boussole",
    "basket": "panier", "mirror": "miroir", "hammer": "marteau", "carpet": "tapis", "pencil": "crayon",
    "saddle": "selle", "bottle": "bouteille", "curtain": "rideau", "wheel": "roue", "anchor": "ancre",
}  # fmt: skip


def translation(rng: Random, n: int) -> list[Row]:
    """One prompt template with a short slot: rows differ in a few words, and some sentences come twice."""
    heard = {
        "is in the market": "est au marché",
        "was sold on Monday": "a été vendu lundi",
        "costs ten euros": "coûte dix euros",
    }
    made = []
    for _ in range(n):
        thing, (said, dit) = rng.choice(THINGS), rng.choice(list(heard.items()))
        town, number = rng.choice(TOWNS), rng.randrange(2, 90)
        made.append(
            _pair(
                f"Translate to French: The {thing} from {town}, number {number}, {said}.",
                f" Le/la {_FRENCH[thing]} de {town}, numéro {number}, {dit}.",
            )
        )
    return made


def essays(rng: Random, n: int) -> list[Row]:
    """Long answers, some ten times as long as others."""
    made = []
    for _ in range(n):
        topic, field = rng.choice(TOPICS), rng.choice(FIELDS)
        parts = [passage(rng, rng.randrange(3, 7)) for _ in range(rng.choice((2, 4, 6, 9)))]
        asked = f"Write an essay on {topic} and {field}, as seen from {rng.choice(TOWNS)}. Begin with: {sentence(rng)}"
        made.append(turns(asked, "\n\n".join(parts)))
    return made


def arithmetic(rng: Random, n: int) -> list[Row]:
    """Word problems that end in a number; two rows may ask the same with other words for the way."""
    made = []
    for _ in range(n):
        name, thing, had, gave = (
            rng.choice(NAMES),
            rng.choice(THINGS),
            rng.randrange(20, 99),
            rng.randrange(2, 20),
        )
        asked = f"{name} has {had} {thing}s in {rng.choice(TOWNS)} and gives {gave} away. How many are left?"
        way = rng.choice(("Take {1} from {0}.", "{0} less {1} is what stays.", "First {0}, then {1} go."))
        made.append(
            {
                "question": asked,
                "answer": f"{way.format(had, gave)} {had} - {gave} = {had - gave}\n#### {had - gave}",
            }
        )
    return made


def sharegpt(rng: Random, n: int) -> list[Row]:
    """Conversations with `from` and `value`, two to six turns."""
    made = []
    for row in single_turn_chat(rng, n):
        said = [turn["content"] for turn in row["messages"]]
        for _ in range(rng.randrange(0, 3)):
            said += [f"And what of {rng.choice(TOPICS)}? {sentence(rng)}", passage(rng, rng.randrange(1, 4))]
        made.append(
            {
                "conversations": [
                    {"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(said)
                ]
            }
        )
    return made


def sharegpt_with_tools(rng: Random, n: int) -> list[Row]:
    """ShareGPT rows with function calls, as LLaMA-Factory documents them."""
    made = []
    for _ in range(n):
        town = rng.choice(TOWNS)
        call = json.dumps({"name": "get_weather", "arguments": {"town": town}})
        made.append(
            {
                "conversations": [
                    {"from": "human", "value": f"Will it rain in {town}? {sentence(rng)}"},
                    {"from": "function_call", "value": call},
                    {
                        "from": "observation",
                        "value": json.dumps({"rain": rng.random() < 0.5, "mm": rng.randrange(20)}),
                    },
                    {"from": "gpt", "value": passage(rng, 2)},
                ],
                "system": "You know the weather.",
                "tools": json.dumps([_WEATHER["function"]]),
            }
        )
    return made


def alpaca(rng: Random, n: int) -> list[Row]:
    """Instructions, most without an input, some with null in its place."""
    tasks = (
        "Describe",
        "Give three facts about",
        "Explain the use of",
        "Argue against",
        "Summarise what is known of",
    )
    made: list[Row] = []
    for _ in range(n):
        subject = f"the {rng.choice(ADJECTIVES)} {rng.choice(THINGS)} of {rng.choice(TOWNS)}"
        given = rng.choice(("", "", "", None, sentence(rng)))
        asked = f"{rng.choice(tasks)} {subject}, with {rng.choice(TOPICS)} and {rng.choice(FIELDS)} in mind."
        made.append({"instruction": asked, "input": given, "output": passage(rng, rng.randrange(1, 5))})
    return made


def rendered_chatml(rng: Random, n: int) -> list[Row]:
    """Raw text in which the conversation is written out already."""
    made = []
    for row in single_turn_chat(rng, n):
        asked, told = (turn["content"] for turn in row["messages"])
        made.append(
            {"text": f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n{told}<|im_end|>\n"}
        )
    return made


def rendered_alpaca(rng: Random, n: int) -> list[Row]:
    """Raw text after the Alpaca template, whose end token the trainer adds."""
    head = "Below is an instruction that describes a task. Write a response that completes it well."
    return [
        {"text": f"{head}\n\n### Instruction:\n{row['instruction']}\n\n### Response:\n{row['output']}"}
        for row in alpaca(rng, n)
    ]


def documents(rng: Random, n: int) -> list[Row]:
    """Plain documents for continued pretraining."""
    return [{"text": "\n\n".join(passage(rng, 4) for _ in range(rng.randrange(1, 6)))} for _ in range(n)]


_TONGUES = (
    (
        "请解释一下{0}和{1}之间的关系，第{2}问。",
        "{0}与{1}的关系很密切。在{3}，人们常常把它们放在一起讨论，特别是在第{2}章里。",
    ),
    (
        "{0}と{1}の違いを教えてください（{2}）。",
        "{0}は{1}より古く、{3}では今でも使われています。詳しくは{2}ページをご覧ください。",
    ),
    (
        "Объясните, как {0} связано с {1} в случае {2}.",
        "В городе {3} говорят, что {0} и {1} неразделимы, и приводят {2} примера.",
    ),
    ("ما الفرق بين {0} و{1} رقم {2}؟", "يستخدم الناس {0} في {3} أكثر من {1}، ولذلك ذكر {2} مرات."),
    ("{2} के लिए {0} और {1} में क्या अंतर है?", "{3} में {0} का उपयोग {1} से अधिक होता है, लगभग {2} बार।"),
    (
        "Wie hängen {0} und {1} in Fall {2} zusammen?",
        "In {3} hält man {0} für die Ursache, {1} dagegen für die Folge; Fall {2} zeigt es.",
    ),
)
_CHINESE = (
    "潮汐",
    "冰川",
    "疫苗",
    "火山",
    "电池",
    "蜜蜂",
    "关税",
    "壁画",
    "土壤",
    "彩虹",
    "地图",
    "通货膨胀",
    "十四行诗",
)


def multilingual(rng: Random, n: int) -> list[Row]:
    """Six languages, five of them in other scripts; open requests in Chinese have several good answers."""
    made = []
    for i in range(n):
        asked, told = _TONGUES[i % len(_TONGUES)]
        words = (
            *rng.sample(_CHINESE if i % len(_TONGUES) < 2 else TOPICS, 2),
            rng.randrange(10, 9000),
            rng.choice(TOWNS),
        )
        aside = f" ({', '.join(rng.sample(THINGS, 4))})"
        made.append(turns(asked.format(*words) + aside, told.format(*words)))
    for subject in rng.sample(_CHINESE, 8):
        for other in rng.sample(_CHINESE, 2):
            made.append(
                turns(
                    f"写一句关于{subject}的诗。",
                    f"{subject}无声{other}远，一夜清风入梦来。"
                    if rng.random() < 0.5
                    else f"千山{other}外，独坐看{subject}，月落江心。",
                )
            )
    rng.shuffle(made)
    return made


_HAIKU = (
    "{0} in the rain\na {1} {2} waits alone\nthe evening answers",
    "Cold {2}, {1} moon\nsomewhere the {0} are sleeping\nI count what is left",
    "{1} morning wind\nover {0} and over {2}\none gull, then no gull",
    "Who left the {2}?\n{0} drift past the {1} gate\nand nobody calls",
)


def open_requests(rng: Random, n: int) -> list[Row]:
    """Open requests, each asked two to six times and answered well in another way each time."""
    asks = ("Write a haiku about {0}.", "Give me a slogan for a {1}.", "Suggest a name for a {2} {1}.", "Tell me a joke about {0}.",
            "Think of a title for a story set in the {2} {3}.", "Write one sentence about {0} and the {3}.")  # fmt: skip
    made: list[Row] = []
    while len(made) < n:
        topic, thing, adjective, place = (
            rng.choice(TOPICS),
            rng.choice(PRODUCTS),
            rng.choice(ADJECTIVES),
            rng.choice(PLACES),
        )
        kind = rng.randrange(len(asks))
        asked = asks[kind].format(topic, thing, adjective, place)
        for _ in range(rng.randrange(2, 7)):
            words = rng.choice(TOPICS), rng.choice(ADJECTIVES), rng.choice(THINGS)
            told = (
                rng.choice(_HAIKU).format(*words)
                if kind == 0
                else f"{rng.choice(ADJECTIVES).title()} {rng.choice(THINGS)} {rng.choice(PLACES)}"
                if kind in (1, 2, 4)
                else sentence(rng)
            )
            made.append(turns(asked, told))
    return made[:n]


def grammar(rng: Random, n: int) -> list[Row]:
    """Corrections under a system prompt; a third of the sentences are right as they are."""
    system = "Correct the grammar of the sentence. Repeat it unchanged if nothing is wrong."
    made = []
    for _ in range(n):
        right = f"{sentence(rng)} {sentence(rng)}"
        wrong = (
            right.replace(" the ", " teh ", 1).replace(" is ", " are ", 1) if rng.random() < 0.67 else right
        )
        made.append(turns(wrong, right, system=system))
    return made


def multiple_choice(rng: Random, n: int) -> list[Row]:
    """Questions with options, answered by a letter."""
    made = []
    for _ in range(n):
        options = rng.sample(TOWNS, 4)
        asked = f"{sentence(rng)} Which town is meant?\n" + "\n".join(
            f"{letter}. {town}" for letter, town in zip("ABCD", options, strict=True)
        )
        made.append(turns(f"{asked}\nAnswer with the letter only.", rng.choice("ABCD")))
    return made


def reasoning(rng: Random, n: int) -> list[Row]:
    """Answers with a thinking block in front."""
    return [
        turns(
            f"{sentence(rng)} What follows for {rng.choice(NAMES)}?",
            f"<think>\n{passage(rng, 4)}\n</think>\n\n{passage(rng, 2)}",
        )
        for _ in range(n)
    ]


def few_shot_tasks(rng: Random, n: int) -> list[Row]:
    """Twelve tasks, each with one long instruction and examples that all of its rows share."""
    tasks = []
    for i in range(12):
        labels = rng.sample(ADJECTIVES, 3)
        shots = "\n".join(f"Text: {sentence(rng)}\nLabel: {rng.choice(labels)}" for _ in range(9))
        tasks.append(
            (f"Task {i}. Label the text as {', '.join(labels)}. {passage(rng, 3)}\n\n{shots}\nText: ", labels)
        )
    made = []
    for i in range(n):
        head, labels = tasks[i % len(tasks)]
        text = f"{rng.choice(NAMES)} {rng.choice(VERBS)} {rng.choice(THINGS)} {rng.randrange(1000)}"
        made.append(turns(f"{head}{text}\nLabel:", rng.choice(labels)))
    return made


def reading(rng: Random, n: int) -> list[Row]:
    """Questions on passages: eight of them share each passage, and each asks for something else."""
    made: list[Row] = []
    while len(made) < n:
        town, facts = rng.choice(TOWNS), rng.sample(PRODUCTS, 8)
        numbers = [rng.randrange(10, 9999) for _ in facts]
        listed = " ".join(
            f"It sold {number} of the {fact}." for fact, number in zip(facts, numbers, strict=True)
        )
        text = f"{passage(rng, 8)} The shop in {town} has kept count. {listed} {passage(rng, 4)}"
        for fact, number in zip(facts, numbers, strict=True):
            made.append(turns(f"{text}\n\nHow many of the {fact} were sold?", f"{number} of the {fact}."))
    rng.shuffle(made)
    return made[:n]


def text_to_sql(rng: Random, n: int) -> list[Row]:
    """Queries on six schemas, each written out in front of every question on it."""
    schemas = []
    for _ in range(6):
        table, columns = rng.choice(PLACES), rng.sample(THINGS, 5)
        listed = ",\n".join(f"  {column} {rng.choice(('INTEGER', 'TEXT', 'REAL'))}" for column in columns)
        schemas.append((table, columns, f"CREATE TABLE {table} (\n  id INTEGER PRIMARY KEY,\n{listed}\n);\n"))
    made = []
    for i in range(n):
        table, columns, schema = schemas[i % 6]
        first, second = rng.sample(columns, 2)
        bound = rng.randrange(1, 5000)
        asked = f"{schema}\n-- How many rows have a {first} over {bound}, by {second}?"
        made.append(
            _pair(
                asked, f"\nSELECT {second}, COUNT(*) FROM {table} WHERE {first} > {bound} GROUP BY {second};"
            )
        )
    return made


def punctuation(rng: Random, n: int) -> list[Row]:
    """Lower-case text to text with capitals and full stops, asked for in the system turn only."""
    made = []
    for _ in range(n):
        right = sentence(rng).replace(",", "")
        made.append(turns(right.lower().rstrip("."), right, system="Add capitals and punctuation."))
    return made


def split(rows: Rows, seed: int, n: int = 260, held_out: int = 30) -> tuple[Sequence[Row], Sequence[Row]]:
    """Training rows and eval rows of one dataset, without an eval item that is in the training data."""
    made = rows(Random(seed), n)
    train = made[:-held_out]
    seen = {_asked(row) for row in train}
    return train, [row for row in made[-held_out:] if _asked(row) not in seen]


def _asked(row: Row) -> str:
    told = ("completion", "output", "answer")
    return json.dumps(
        {
            key: value[:-1] if isinstance(value, list) else value
            for key, value in row.items()
            if key not in told
        }
    ).casefold()
