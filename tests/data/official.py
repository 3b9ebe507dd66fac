"""Small files in the exact layouts that the sources publish. All texts were written for these tests."""

import json
from pathlib import Path


def write_lines(path: Path, rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def comparison(post="t3_1", choice=1, worker="w1", split="train", texts=(" cats sleep", " dogs run"), **info):
    return {
        "info": {"id": post, "post": "My cat sleeps.", "title": "Cats?", "subreddit": "pets", **info},
        "summaries": [{"text": text, "policy": "sup4", "note": None} for text in texts],
        "choice": choice,
        "worker": worker,
        "batch": "batch3",
        "split": split,
        "extra": {"confidence": 8},
    }


def tldr(folder: Path) -> Path:
    news = comparison()
    news["info"] = {"id": "x", "site": "cnn", "article": "News.", "title": "N"}
    write_lines(
        folder / "comparisons" / "batch3.json",
        [comparison(), comparison(choice=0, worker="w2"), news, comparison(texts=("", "b")), comparison(post="t3_9")],
    )
    write_lines(
        folder / "comparisons" / "batch10.json",
        [
            comparison("t3_2", 0, "w1", "valid1"),
            comparison("t3_3", 1, "w2", "valid2"),
            comparison("t3_3", texts=("s", "s")),
        ],
    )
    return folder


def reply(turn, place, text, score, chosen):
    return {
        "turn": turn,
        "role": "model",
        "content": text,
        "model_name": "m",
        "model_provider": "p",
        "score": score,
        "if_chosen": chosen,
        "within_turn_id": place,
    }


def prism(folder: Path) -> Path:
    history = [
        {"turn": 0, "role": "user", "content": "Hello?"},
        reply(0, 0, "Hi.", 40, False),
        reply(0, 1, "Hello!", 90, True),
        reply(0, 2, "Yes?", 95, False),
        reply(0, 3, "Hello!", 50, False),
        {"turn": 1, "role": "user", "content": "Tell me more."},
        reply(1, 0, "More.", 70, True),
        reply(1, 1, "Less.", 20, False),
        {"turn": 2, "role": "user", "content": "And?"},
        reply(2, 0, "Nothing was chosen", 1, False),
        reply(2, 1, "here.", 1, False),
    ]
    rows = [
        {"conversation_id": "c1", "user_id": "user1", "conversation_type": "unguided", "conversation_history": history},
        {
            "conversation_id": "c2",
            "user_id": "user2",
            "conversation_type": "unguided",
            "conversation_history": history[:3],
        },
    ]
    write_lines(folder / "conversations.jsonl", rows)
    return folder


def lamp(folder: Path, task: int, nested: bool = False) -> Path:
    inputs = {
        4: "Generate a headline for the following article: The bridge is open.",
        5: "Generate a title for the following abstract of a paper: We count words.",
        7: "Paraphrase the following tweet without any explanation before or after it: good morning all",
    }
    items = {
        4: [{"text": "Rain fell.", "title": "Wet Day"}, {"text": "The bridge  is open.", "title": "Open At Last"}],
        5: [{"abstract": "We parse.", "title": "Parsing"}, {"abstract": "We tag.", "title": "Tagging"}],
        7: [{"text": "so tired"}, {"text": "coffee first"}, {"text": "coffee first"}],
    }
    for part, count in (("train", 2), ("dev", 1)):
        profile = [{"id": str(n), "date": "2016-01-01", **item} for n, item in enumerate(items[task])]
        questions = [{"id": f"{n}1", "input": inputs[task], "profile": profile} for n in range(count)]
        golds = {"task": f"LaMP_{task}", "golds": [{"id": f"{n}1", "output": f"Own Words {n}"} for n in range(count)]}
        place = folder / part if nested else folder
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{part}_questions.json").write_text(json.dumps(questions), encoding="utf-8")
        (place / f"{part}_outputs.json").write_text(json.dumps(golds), encoding="utf-8")
    return folder


def argument(tag, name, text):
    return f"""<{tag}><author>http://x.test/a</author><voteUpCount>0</voteUpCount><voteDownCount>0</voteDownCount>
      <stance>Yes</stance><text>{text}</text><id>{name}</id></{tag}>"""


def argument_pair(first, second, votes):
    assignments = "".join(
        f"""<mTurkAssignment><turkID>{user}</turkID><hitID>H</hitID>
        <assignmentAcceptTime>2016-02-22 21:40:51.0 UTC</assignmentAcceptTime>
        <assignmentSubmitTime>2016-02-22 21:46:33.0 UTC</assignmentSubmitTime>
        <value>{value}</value><reason>Because.</reason><assignmentId>A</assignmentId><turkRank>4</turkRank>
        <turkCompetence>0.9</turkCompetence><workerStance>none</workerStance></mTurkAssignment>"""
        for user, value in votes
    )
    return f"""  <annotatedArgumentPair>
    <id>{first[0]}_{second[0]}</id>
    {argument("arg1", *first)}
    {argument("arg2", *second)}
    <debateMetaData><title>Tea or coffee?</title><url>http://x.test</url></debateMetaData>
    <mTurkAssignments>{assignments}</mTurkAssignments>
    <goldLabel>a1</goldLabel>
  </annotatedArgumentPair>"""


def ukp_xml(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    one, two, copy = ("1", "Tea is calm &amp; warm."), ("2", "Tea is cheap."), ("3", "Tea is cheap.")
    pairs = [
        argument_pair(one, two, [("A1", "a1"), ("A2", "a2"), ("A3", "equal")]),
        argument_pair(copy, one, [("A1", "a1")]),
        argument_pair(two, copy, [("A2", "a1")]),
    ]
    text = '<?xml version="1.0"?>\n<list>\n' + "\n".join(pairs) + "\n</list>\n"
    (folder / "tea-or-coffee_yes.xml").write_text(text, encoding="utf-8")
    return folder


def ukp_tables(folder: Path) -> Path:
    """The same votes as `ukp_xml`."""
    texts = {1: "Tea is calm & warm.", 2: "Tea is cheap.", 3: "Tea is cheap."}
    debate = {"topic": "tea-or-coffee_yes", "title": "Tea or coffee?", "stance": "Yes"}
    write_lines(folder / "arguments.jsonl", [{"id": name, **debate, "text": text} for name, text in texts.items()])
    votes = ["A1,1,2,1", "A2,1,2,2", "A3,1,2,tie", "A1,3,1,1", "A2,2,3,1"]
    (folder / "votes.csv").write_text("\n".join(["user,argument_1,argument_2,vote", *votes]) + "\n", encoding="utf-8")
    return folder


def anthology(folder: Path) -> Path:
    """Two authors with nine papers each (three of them together), one with one, and papers that do not count."""

    def paper(number, authors, title=None, abstract="<abstract>We study <i>words</i>.</abstract>"):
        title = title or f"On <fixed-case>W</fixed-case>ords {number}"
        return f'<paper id="{number}"><title>{title}</title>{authors}{abstract}<url hash="0">x</url></paper>'

    ann = "<author><first>Ann</first><last>Lee</last></author>"
    bo = '<author id="bo-li-2"><first>Bo</first><last>Li</last></author>'
    cy = "<author><last>Cy</last></author>"
    both = [paper(n, ann + bo) for n in range(1, 4)]
    own = [paper(n, ann) for n in range(4, 10)] + [paper(n, bo) for n in range(10, 16)] + [paper(16, cy)]
    other = [paper(17, ann, abstract=""), '<frontmatter><url hash="0">x</url></frontmatter>']
    folder.mkdir(parents=True, exist_ok=True)

    def volume(collection, number, year, papers):
        meta = f"<meta><booktitle>B</booktitle><year>{year}</year></meta>"
        text = f'<collection id="{collection}"><volume id="{number}">{meta}{"".join(papers)}</volume></collection>'
        (folder / f"{collection}.xml").write_text("<?xml version='1.0' encoding='UTF-8'?>\n" + text, encoding="utf-8")

    volume("2020.acl", "main", 2020, both + own + other)
    volume("P15", "1", 2015, [paper(1, ann)])
    return folder


def acl_tables(folder: Path) -> Path:
    papers = [
        {"paper": f"2020.acl-main.{n}", "year": 2020 if n else 2010, "title": f"T{n}", "abstract": f"A{n}"}
        for n in range(9)
    ]
    write_lines(folder / "papers.jsonl", papers)
    rows = [f"a0,{paper['paper']},1" for paper in papers] + ["a1,2020.acl-main.1,2"]
    text = "\n".join(["user,paper,author_position", *rows]) + "\n"
    (folder / "authorship.csv").write_text(text, encoding="utf-8")
    return folder
