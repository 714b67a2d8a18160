"""Word lists for `toxicity`, by language: written for nbllm, short, whole words as they are used to insult.

STRONG holds slurs and abuse, MILD what is rude but common, ALLOWED phrases in which such a word means something else.
Words that are mostly harmless are left out: a list that drops cookery and anatomy does more harm than one that misses.
"""

from __future__ import annotations

from collections.abc import Mapping

STRONG: Mapping[str, tuple[str, ...]] = {
    "en": (
        "asshole", "assholes", "bastard", "bastards", "bitch", "bitches", "cocksucker", "cunt", "cunts", "dickhead",
        "fag", "faggot", "faggots", "fuck", "fucked", "fucker", "fuckers", "fucking", "fuck you", "kill yourself",
        "kike", "motherfucker", "motherfuckers", "motherfucking", "nigger", "niggers", "retard", "retards", "slut",
        "sluts", "spic", "tranny", "twat", "wanker", "whore", "whores",
    ),
    "de": (
        "arschloch", "arschlöcher", "fick dich", "ficker", "fotze", "fotzen", "hurensohn", "hurensöhne", "kanake",
        "kanaken", "missgeburt", "neger", "schlampe", "schlampen", "schwuchtel", "wichser", "nutte", "drecksau",
    ),
    "fr": (
        "connard", "connards", "connasse", "enculé", "enculés", "fils de pute", "nique ta mère", "pédé", "putain",
        "pute", "putes", "salope", "salopes", "va te faire foutre", "bougnoule", "nègre", "négro", "ta gueule",
    ),
    "es": (
        "cabrón", "cabrones", "gilipollas", "hijo de puta", "hijos de puta", "hijoputa", "joder", "maricón",
        "maricones", "me cago en", "pendejo", "pendejos", "puta", "putas", "sudaca", "vete a la mierda", "zorra",
    ),
    "zh": ("傻逼", "操你妈", "他妈的", "妈的", "去死吧", "贱人", "婊子", "王八蛋", "混蛋", "狗杂种", "滚蛋", "草泥马"),
}  # fmt: skip
MILD: Mapping[str, tuple[str, ...]] = {
    "en": ("bullshit", "crap", "dumbass", "idiot", "idiots", "imbecile", "moron", "morons", "shit", "shitty", "stupid",
           "scum", "shut up"),
    "de": ("blödmann", "depp", "deppen", "dumm", "dummkopf", "idiot", "idioten", "mist", "scheiße", "scheisse",
           "scheiß", "trottel", "halt die klappe", "penner", "spinner"),
    "fr": ("abruti", "abrutie", "con", "conne", "crétin", "débile", "idiot", "idiote", "imbécile", "merde", "salaud"),
    "es": ("estúpido", "estúpida", "idiota", "idiotas", "imbécil", "mierda", "tonto", "tonta", "cállate"),
    "zh": ("白痴", "笨蛋", "蠢货", "废物", "垃圾人", "闭嘴"),
}  # fmt: skip
ALLOWED: Mapping[str, tuple[str, ...]] = {
    "en": ("bastard sword", "bastard file", "bastard title", "fire retard", "flame retard", "spic and span",
           "idiot proof", "idiot-proof", "idiot's guide"),
    "de": ("mist ausbringen", "spinner und weber"),
    "fr": ("la putain respectueuse",),
    "es": ("zorra ártica", "zorra roja"),
    "zh": (),
}  # fmt: skip
