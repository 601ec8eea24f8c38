"""Words for healthy rows, and texts made of them: the same for the same seed, different for another."""

from __future__ import annotations

from random import Random

NAMES, TOWNS, THINGS, ADJECTIVES, VERBS, PLACES, TOPICS, FIELDS, PRODUCTS = (
    line.split(", ")
    for line in """
Ada, Bruno, Carla, Dmitri, Esther, Farid, Greta, Hugo, Ines, Jonas, Keiko, Liam, Mira, Nadia, Otto, Priya, Quentin, Rosa
Arles, Bergen, Cork, Delft, Evora, Ghent, Lund, Nantes, Porto, Riga, Siena, Turku, Utrecht, Vigo, York, Zadar, Bath, Graz
kettle, violin, ladder, lantern, compass, basket, mirror, hammer, carpet, pencil, saddle, bottle, curtain, wheel, anchor
narrow, quiet, heavy, bright, ancient, useful, fragile, round, cheap, rare, gentle, steep, frozen, hollow, clever, plain
carries, repairs, borrows, measures, paints, sells, forgets, hides, collects, weighs, cleans, describes, trades, builds
harbour, library, market, orchard, workshop, bridge, valley, station, museum, bakery, garden, theatre, quarry, island
tides, glaciers, compilers, vaccines, sonnets, inflation, volcanoes, batteries, bees, tariffs, fresco, soil, rainbows, maps
biology, finance, music, law, physics, cooking, history, medicine, geology, chess, sailing, weaving, logic, farming
blender, headphones, raincoat, keyboard, backpack, desk lamp, sleeping bag, coffee maker, tripod, scooter, heater, tent
""".strip().splitlines()
)
_OPENINGS = (
    "In practice",
    "Most of the time",
    "For a start",
    "By contrast",
    "Even so",
    "Near the end",
    "Before that",
    "Once a year",
    "According to some",
    "Against all advice",
    "As far as anyone knows",
    "With some care",
)
_ENDINGS = (
    "although nobody asked for it",
    "which saves a good deal of time",
    "because the weather rarely holds",
    "as long as the price stays low",
    "and that is why it lasts",
    "unless the road is closed",
    "so the work goes on at night",
    "while the others look on",
    "until the season is over",
    "even when money is short",
)


def sentence(rng: Random) -> str:
    """One sentence of ten to twenty words."""
    name, other = rng.sample(NAMES, 2)
    first, second = rng.sample(THINGS, 2)
    town, place, adjective = rng.choice(TOWNS), rng.choice(PLACES), rng.choice(ADJECTIVES)
    body = rng.choice(
        (
            f"{name} {rng.choice(VERBS)} the {adjective} {first} near the {place} of {town}",
            f"the {place} in {town} keeps a {adjective} {first} and {rng.randrange(2, 90)} of its kind",
            f"a {first} from {town} is {adjective} enough for {other} and the {rng.choice(TOPICS)} alike",
            f"{rng.choice(TOPICS)} matter more to {name} than the {second} that {other} {rng.choice(VERBS)}",
            f"{rng.choice(FIELDS)} explains how {rng.choice(TOPICS)} shape the {place} and its {second}",
        )
    )
    opening = f"{rng.choice(_OPENINGS)}, " if rng.random() < 0.5 else ""
    ending = f", {rng.choice(_ENDINGS)}" if rng.random() < 0.6 else ""
    text = f"{opening}{body}{ending}."
    return text[0].upper() + text[1:]


def passage(rng: Random, sentences: int) -> str:
    """That many sentences."""
    return " ".join(sentence(rng) for _ in range(sentences))


def amount(rng: Random) -> str:
    """A price."""
    return f"{rng.randrange(3, 900)}.{rng.randrange(100):02d}"
