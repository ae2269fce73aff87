"""The strings on which tokenizers are compared: made here from a seed, nothing is downloaded."""

import random
import unicodedata

# Two sentences of our own in each of forty languages.
SENTENCES = {
    "en": "The butler keeps every letter, but he only carries in what today's guests will ask for. Isn't that enough?",
    "de": "Der Diener hebt jeden Brief auf, trägt aber nur herein, was heute gebraucht wird. Größe ist nicht alles!",
    "fr": "Le majordome garde chaque lettre, mais n'apporte que l'essentiel. Où sont passés les œufs de Noël ?",
    "es": "El mayordomo guarda cada carta, pero sólo trae lo que hace falta. ¿Dónde están los niños mañana?",
    "it": "Il maggiordomo conserva ogni lettera, ma porta solo ciò che serve. Perché non l'hai già detto?",
    "pt": "O mordomo guarda todas as cartas, mas só traz o que é preciso. Amanhã não há pão na avó.",
    "nl": "De butler bewaart elke brief, maar brengt alleen wat nodig is. 's Avonds eet hij ijs met één lepel.",
    "sv": "Betjänten sparar varje brev men bär bara in det som behövs. Är ön långt borta på våren?",
    "da": "Tjeneren gemmer hvert brev, men bærer kun det nødvendige ind. Rødgrød med fløde på en ø.",
    "no": "Butleren tar vare på hvert brev, men bærer bare inn det som trengs. Blåbærsyltetøy er godt.",
    "fi": "Hovimestari säilyttää jokaisen kirjeen mutta tuo vain tarvittavan. Hyvää yötä, ystäväni!",
    "is": "Þjónninn geymir hvert bréf en ber aðeins inn það sem þarf. Æðurin flýgur yfir ísinn.",
    "pl": "Kamerdyner przechowuje każdy list, lecz wnosi tylko to, co potrzebne. Zażółć gęślą jaźń.",
    "cs": "Komorník uchovává každý dopis, ale přináší jen to potřebné. Příliš žluťoučký kůň běžel domů.",
    "sk": "Komorník si odkladá každý list, ale prináša len potrebné. Ľúbim ťa, mäkčeň a dĺžeň.",
    "hu": "Az inas minden levelet megőriz, de csak a szükségeset hozza be. Árvíztűrő tükörfúrógép.",
    "ro": "Majordomul păstrează fiecare scrisoare, dar aduce numai ce trebuie. Știi unde-i țara ăstora?",
    "tr": "Uşak her mektubu saklar ama yalnızca gerekeni getirir. İstanbul'da ılık bir ağustos günü.",
    "vi": "Người quản gia giữ mọi lá thư nhưng chỉ mang vào thứ cần dùng. Hôm nay trời đẹp quá nhỉ?",
    "id": "Pelayan menyimpan setiap surat, tetapi hanya membawa yang diperlukan. Anak-anak bermain di pantai.",
    "sw": "Mtumishi huhifadhi kila barua lakini huleta tu kinachohitajika. Habari za asubuhi, rafiki?",
    "ru": "Дворецкий хранит каждое письмо, но вносит только нужное. Съешь ещё этих мягких булок, ёлки!",
    "uk": "Дворецький зберігає кожен лист, але приносить лише потрібне. Їжак з'їв ґедзя біля ґанку.",
    "bg": "Икономът пази всяко писмо, но внася само нужното. Жълтата дюля беше щастлива днес.",
    "sr": "Батлер чува свако писмо, али уноси само оно што треба. Љубав и њива, ћуп и џак.",
    "el": "Ο μπάτλερ φυλάει κάθε γράμμα, αλλά φέρνει μόνο όσα χρειάζονται. Πού είναι η θάλασσα;",
    "hy": "Սպասավորը պահում է ամեն նամակ, բայց բերում է միայն անհրաժեշտը։ Բարի լույս։",
    "ka": "მსახური ინახავს ყველა წერილს, მაგრამ შემოაქვს მხოლოდ საჭირო. დილა მშვიდობისა!",
    "he": "המשרת שומר כל מכתב, אך מביא רק את הנחוץ. שָׁלוֹם עֲלֵיכֶם, מה שלומך?",
    "ar": "الخادم يحتفظ بكل رسالة لكنه لا يحضر إلا ما يلزم. مَرْحَبًا، كيف حالك اليوم؟ ١٢٣",
    "fa": "پیشخدمت هر نامه‌ای را نگه می‌دارد، اما فقط آنچه لازم است می‌آورد. ۱۴۰۲ سال",
    "hi": "नौकर हर चिट्ठी रखता है, पर वही लाता है जो चाहिए। क्या आप हिन्दी पढ़ सकते हैं? १२३",
    "bn": "খানসামা প্রতিটি চিঠি রাখে, কিন্তু যা দরকার শুধু তাই আনে। আপনি কেমন আছেন? ১২৩",
    "ta": "பணியாளர் ஒவ்வொரு கடிதத்தையும் வைத்திருக்கிறார், தேவையானதை மட்டும் கொண்டுவருகிறார்.",
    "th": "พ่อบ้านเก็บจดหมายทุกฉบับ แต่นำเข้ามาเฉพาะที่ต้องใช้ วันนี้อากาศดีมาก ๑๒๓",
    "zh": "管家保存每一封信，但只把今天要用的拿进来。你吃饭了吗？二〇二五年，龘靐齉。",
    "ja": "執事はすべての手紙を保管し、必要なものだけを運び込みます。ガギグゲゴ、ｶﾀｶﾅ、１２３。",
    "ko": "집사는 모든 편지를 보관하지만 필요한 것만 가져옵니다. 안녕하세요, 오늘 날씨가 좋네요!",
    "am": "አሽከሩ እያንዳንዱን ደብዳቤ ያስቀምጣል፤ የሚያስፈልገውን ብቻ ያመጣል። ሰላም ነው?",
    "my": "အစေခံသည် စာတိုင်းကို သိမ်းထားသော်လည်း လိုအပ်သည်ကိုသာ ယူလာသည်။ မင်္ဂလာပါ။ ၁၂၃",
}

CODE = [
    "def read_block(pool, i=0):\n    \"\"\"Returns block `i`.\"\"\"\n    if not pool[i]:\n        raise KeyError(f\"no block {i!r}\")\n    return pool[i]\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i] * 0x1F; // don't unroll\n}\r\n",
    "template <typename T>\nstd::vector<T>&& move_all(std::vector<T>&& v) noexcept { return std::move(v); }\n",
    "SELECT t.id, COUNT(*) AS n FROM tokens t WHERE t.text LIKE '%''s%' GROUP BY 1 ORDER BY n DESC;\n",
    "{\"model\": \"tiny\", \"layers\": [1, 2, 3.5e-7], \"tied\": true, \"rope\": null}\n",
    "<!DOCTYPE html>\n<p class=\"a b\">&lt;tag&gt; &amp; text</p>\n<!-- comment -->\n",
    "#!/bin/bash\nset -euo pipefail\nls -la \"$HOME\"/*.txt | awk '{print $5}' >> out.log 2>&1\n",
    "fn main() -> Result<(), Box<dyn Error>> {\n    let x: u32 = 1_000_000;\n    println!(\"{x:?}\");\n    Ok(())\n}\n",
    "const f = async (a, ...b) => await a?.b ?? `${b.length}px`;\n\n\nexport default f;\n",
    "\\begin{equation}\n  \\sum_{i=1}^{n} x_i^2 \\leq \\frac{1}{2}\\alpha\n\\end{equation}\n",
    "public static void main(String[] args) {\n        System.out.println(\"Hello,\\tworld!\");\n}\n",
    "package main\n\nimport \"fmt\"\n\nfunc main() {\n\tfmt.Printf(\"%08.3f\\n\", 3.14159)\n}\n",
    "x = [i**2 for i in range(10) if i % 2 == 0]  # squares\nassert x[-1] == 64, x\n",
    "2025-11-29T15:58:27.123456Z ERROR [worker-12] /var/log/app.log:1234: ECONNREFUSED 127.0.0.1:50051\n",
    "| a | b |\n|---|:-:|\n| 1 | **2** |\n\n- [x] done\n- [ ] not done\n\n```py\nprint(1)\n```\n",
    "https://example.org/a/b?c=d&e=%20f#g user@example.com C:\\Users\\me\\file.txt ~/x/../y\n",
]

EMOJI = [
    "😀", "👍🏽", "👩‍💻", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🇩🇪🇫🇷🇯🇵", "1️⃣", "❤️‍🔥", "☺️", "☺", "🧑🏿‍🤝‍🧑🏻", "🤷‍♂️", "🕵🏻‍♀️", "™️", "🫠", "🪿",
]

LOOK_ALIKES = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>",
    "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<s>", "</s>", "<unk>", "<pad>", "[INST]", "[/INST]",
    "[AVAILABLE_TOOLS]", "[TOOL_CALLS]", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|file_sep|>", "<repo_name>",
    "<file_sep>", "<gh_stars>", "<empty_output>", "<0x0A>", "<0xE2>", "<0xff>", "▁", "▁▁", "Ġ", "Ċ", "<|reserved_special_token_7|>", "[PAD151665]",
    "[[UNUSED]]", "<SPECIAL_20>", "<|im_start|", "|im_end|>", "<|im_<|im_end|>end|>", "<<s>>", "<s><s></s>", "< s >", "<S>",
    "<mask>", "<word>", "<norm>é", "<left>", "<right>", "⟨é⟩",
]

SPACES = "\t\n\v\f\r \x1c\x1f\x85\xa0\u1680\u2000\u2003\u200a\u200b\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
DIGITS = "0123456789٠١٢٣۴۵६७৮৯๔๕０１９²³¹½¾ⅣⅫⅷ①⑳㉑〇一二三𝟘𝟙𝟗𑁦🄀𐄇"
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'lL", "'M", "'D", "'ſ", "'ſt", "’s", "''s", "'x", "'r", "'l", "'v"]


def from_ranges(r, ranges):
    low, high = r.choice(ranges)
    while True:
        c = r.randint(low, high)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


MARKS = [(0x300, 0x36F), (0x591, 0x5BD), (0x610, 0x61A), (0x64B, 0x65F), (0x93C, 0x94D), (0x1DC0, 0x1DFF), (0x20D0, 0x20DC),
         (0x3099, 0x309A), (0x898, 0x89F), (0x1ABF, 0x1ACE), (0x1E4EC, 0x1E4EF), (0x10F46, 0x10F50)]
BASES = [(0x41, 0x7A), (0xC0, 0x17F), (0x391, 0x3C9), (0x410, 0x44F), (0x5D0, 0x5EA), (0x627, 0x64A), (0x905, 0x939), (0x304B, 0x3062),
         (0x1100, 0x1112), (0xAC00, 0xAC40), (0x11930, 0x11938)]
PLANES = [(0x20, 0x7E), (0x80, 0x24F), (0x250, 0x5FF), (0x600, 0x10FF), (0x1100, 0x1FFF), (0x2000, 0x2BFF), (0x2C00, 0x33FF), (0x3400, 0x9FFF),
          (0xA000, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x11FFF), (0x12000, 0x16FFF), (0x1B000, 0x1FFFF), (0x20000, 0x323AF), (0xE0000, 0x10FFFF)]


def words(r):
    """A few words of one or two languages, with the punctuation they came with."""
    chosen = r.sample(sorted(SENTENCES), r.choice([1, 1, 2]))
    pool = [w for language in chosen for w in SENTENCES[language].split(" ")]
    return r.choice([" ", " ", " ", "  ", "\n", ""]).join(r.choice(pool) for _ in range(r.randint(1, 9)))


def marks(r):
    text = "".join(
        from_ranges(r, BASES) + "".join(from_ranges(r, MARKS) for _ in range(r.choice([0, 1, 1, 2, 4]))) for _ in range(r.randint(1, 7)))
    return r.choice([text, text, unicodedata.normalize("NFD", text), unicodedata.normalize("NFC", text)])


def run(r):
    unit = r.choice(["a", "A", " ", "\n", "\t", "=", "-", "0", "7", "é", "中", "あ", "😀", "\u0301", "ab", "'s", " x", "\r\n", "</s>", "▁", "\u3000", "ǅ", "ʰA", "\x00"])
    before, after = r.choice(["", "", "x", " ", "."]), r.choice(["", "", "x", " ", "\n", "9"])
    return before + unit * r.choice([2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 129, 257]) + after


def mixed_spaces(r):
    return "".join(r.choice([r.choice(SPACES), r.choice(SPACES), r.choice(" \n"), r.choice(["a", "B", "1", ".", "中", "'", "/"])]) for _ in range(r.randint(1, 14)))


def digits(r):
    return "".join(r.choice([r.choice(DIGITS), r.choice(DIGITS[:10]), r.choice(DIGITS[:10]), r.choice(".,- eEx%€$A")]) for _ in range(r.randint(1, 16)))


def controls(r):
    return "".join(r.choice([chr(r.randint(0, 31)), chr(r.randint(127, 159)), r.choice("ab 1."), chr(r.randint(0, 255))]) for _ in range(r.randint(1, 12)))


def contractions(r):
    return "".join(r.choice(["I", "we", "IT", "1", " ", ".", "é", "中", "'", ""]) + r.choice(CONTRACTIONS) for _ in range(r.randint(1, 5)))


def look_alikes(r):
    return "".join(r.choice(["", " ", "  ", "a", "A b", "\n", "é", "e\u0301", "."]) + r.choice(LOOK_ALIKES) for _ in range(r.randint(1, 4))) + r.choice(["", " ", " z"])


def code(r):
    text = "".join(r.choice(CODE).replace("    ", r.choice(["    ", "  ", "\t", "        "])) for _ in range(r.choice([1, 1, 2])))
    begin = r.randrange(len(text))
    return text[begin : begin + r.randint(5, 120)]


def emoji(r):
    return "".join(r.choice(EMOJI) + r.choice(["", "", " ", "\u200d", "\ufe0f", "a"]) for _ in range(r.randint(1, 5)))


def code_points(r):
    return "".join(from_ranges(r, PLANES) for _ in range(r.randint(1, 10)))


def letters(r):
    """Upper, title, lower, modifier and other letters and marks: what tekken's pattern tells apart."""
    return "".join(r.choice("aZbYéÉǅǈʰªͅßΣσ中あـ\u0301\u0903 .") for _ in range(r.randint(1, 12)))


def ill_formed(r):
    data = bytearray(words(r)[:40].encode() if r.random() < 0.6 else bytes(r.randint(0x70, 0xFF) for _ in range(r.randint(1, 12))))
    for _ in range(r.randint(1, 4)):
        i = r.randrange(len(data))
        r.choice([lambda: data.__setitem__(i, r.randint(0x80, 0xFF)), lambda: data.insert(i, r.choice([0x80, 0xC0, 0xE2, 0xED, 0xF0, 0xF4, 0xFF])),
                  lambda: len(data) > 1 and data.pop(i)])()
    return bytes(data)


def make_corpus(class_boundaries, seed=20250701):
    """About 5,600 byte strings. `class_boundaries`: code points at which the class of characters changes."""
    r = random.Random(seed)
    texts = ["", " ", "  ", "\n", "a", " a", "a ", "é", "e\u0301", "\ufffd", "\x00"]
    texts += list(SENTENCES.values()) + CODE + EMOJI + LOOK_ALIKES
    texts += [unicodedata.normalize("NFD", s) for s in SENTENCES.values()]
    kinds = [(words, 1200), (code, 600), (emoji, 200), (marks, 500), (run, 400), (mixed_spaces, 400), (digits, 300), (controls, 250),
             (contractions, 200), (look_alikes, 400), (code_points, 400), (letters, 250), (ill_formed, 350)]
    texts += [kind(r) for kind, count in kinds for _ in range(count)]
    # Both sides of each border between classes, among letters, digits and spaces.
    for i in range(0, len(class_boundaries), 8):
        text = ""
        for c in class_boundaries[i : i + 8]:
            for d in (c - 1, c):
                if d >= 0 and not 0xD800 <= d < 0xE000:
                    text += chr(d) + r.choice(["", "a", " ", "1", ".", "\n", "A"])
        texts.append(text)
    # The long ones at the end; they are few.
    texts += [unit * n for unit, n in [("A", 3000), (" ", 2000), ("abc ", 700), ("\n", 1500), ("中", 800), ("=", 1500), ("1", 1000)]]
    return [t if isinstance(t, bytes) else t.encode() for t in texts]
