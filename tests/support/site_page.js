// Faults of the page as it is laid out now, each a line of text. `site_check.py` calls one function at a time.
({
    // Text that is too small, things that are too wide, and pictures without words.
    laidOut(smallest) {
        const faults = [];
        const room = document.documentElement.clientWidth;
        const scrolled = (element) => {
            for (let at = element.parentElement; at && at !== document.body; at = at.parentElement)
                if (['auto', 'scroll', 'hidden', 'clip'].includes(getComputedStyle(at).overflowX)) return true;
            return false;
        };
        if (document.documentElement.scrollWidth > room) {
            const wide = [...document.body.querySelectorAll('*')].find(
                (e) => e.getBoundingClientRect().right > room + 1 && !scrolled(e));
            faults.push(`wider than the screen: ${wide ? wide.outerHTML.slice(0, 80) : 'something'}`);
        }
        const small = new Map();
        for (const [text, element] of this.texts()) {
            const svg = element.ownerSVGElement;
            const scale = svg ? Math.abs(element.getScreenCTM()?.d ?? 1) || Math.abs(element.getScreenCTM().b) : 1;
            const size = parseFloat(getComputedStyle(element).fontSize) * scale;
            if (size > 0 && size < smallest - 0.05) small.set(text.slice(0, 30), size.toFixed(1));
        }
        if (small.size) faults.push(`${small.size} texts below ${smallest} px: ${JSON.stringify([...small].slice(0, 3))}`);
        return faults;
    },

    // Pictures, controls and links without words, headings out of order, ids that two elements share.
    structure() {
        const faults = [];
        for (const image of document.querySelectorAll('main img, article img'))
            if (!image.alt.trim()) faults.push(`an image without alt text: ${image.src.slice(-60)}`);
        for (const svg of document.querySelectorAll('article svg'))
            if (!svg.closest('[aria-label], [aria-hidden=true], [aria-labelledby]') && svg.querySelector('text'))
                faults.push('a drawing without a label');
        const headings = [...document.querySelectorAll('article :is(h1, h2, h3, h4, h5, h6)')];
        const levels = headings.map((heading) => Number(heading.tagName[1]));
        if (levels.filter((level) => level === 1).length !== 1) faults.push('not exactly one heading of level 1');
        headings.forEach((heading, at) => {
            if (at && levels[at] > levels[at - 1] + 1)
                faults.push(`a heading of level ${levels[at]} below one of level ${levels[at - 1]}: ${heading.textContent.slice(0, 40)}`);
        });
        for (const element of document.querySelectorAll('a[href], button, input:not([type=hidden]), select, textarea, summary')) {
            const words = [element.textContent, element.title, element.getAttribute('aria-label'),
                ...[...element.labels ?? []].map((label) => label.textContent),
                ...[...element.querySelectorAll('img')].map((image) => image.alt)];
            if (element.tagName === 'SELECT') words[0] = '';
            if (!words.some((text) => text?.trim())) faults.push(`a control without a name: ${element.outerHTML.slice(0, 80)}`);
        }
        for (const element of document.querySelectorAll('[tabindex]'))
            if (element.tabIndex > 0) faults.push(`a place of its own in the focus order: ${element.outerHTML.slice(0, 80)}`);
        for (const element of document.querySelectorAll('[aria-hidden=true] :is(a[href], button, input, select)'))
            faults.push(`a control that a screen reader does not know: ${element.outerHTML.slice(0, 80)}`);
        const counts = Map.groupBy([...document.querySelectorAll('[id]')].filter((e) => !e.ownerSVGElement), (e) => e.id);
        for (const [id, elements] of counts)
            if (elements.length > 1) faults.push(`${elements.length} elements with the id ${id}`);
        return faults;
    },

    // What moves now. The reader asked for no motion.
    moving() {
        const faults = document.getAnimations().filter(
            (one) => one.playState === 'running' && one.effect.getComputedTiming().duration > 1)
            .map((one) => `moves although the reader wants no motion: ${one.animationName ?? one.transitionProperty}`);
        for (const image of document.images)
            if (image.checkVisibility() && /\.gif$/.test(image.currentSrc)) faults.push(`a film that cannot be stopped: ${image.currentSrc.slice(-40)}`);
        return faults;
    },

    // Show all that a reader can unfold, and all frames of animations.
    unfold() {
        for (const details of document.querySelectorAll('details')) details.open = true;
        for (const folded of document.querySelectorAll('.tl-until')) folded.classList.add('tl-open');
        const style = document.createElement('style');
        style.textContent = '[class^=anim-] > .frames > * { visibility: visible !important; animation: none !important; }' +
            ' * { transition: none !important; animation: none !important; }';
        document.head.append(style);
    },

    // Visible texts of an element, each with the element that it is directly in.
    *texts(root = document.body) {
        const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
            const element = walker.currentNode.parentElement;
            const text = walker.currentNode.data.trim();
            if (!text || ['SCRIPT', 'STYLE', 'NOSCRIPT', 'OPTION', 'TITLE', 'DESC'].includes(element.tagName.toUpperCase())) continue;
            if (element.checkVisibility({visibilityProperty: true, opacityProperty: true})) yield [text, element];
        }
    },

    // Texts with less contrast to what is behind them than WCAG 2.2 asks for, except on pictures.
    contrast(least, leastOfLarge, root = document.body) {
        const context = Object.assign(document.createElement('canvas'), {width: 1, height: 1})
            .getContext('2d', {willReadFrequently: true});
        const colours = new Map();
        const colour = (css) => { // red, green, blue and alpha
            if (!colours.has(css)) {
                context.clearRect(0, 0, 1, 1);
                context.fillStyle = css;
                context.fillRect(0, 0, 1, 1);
                const [red, green, blue, alpha] = context.getImageData(0, 0, 1, 1).data;
                colours.set(css, [red, green, blue, alpha / 255]);
            }
            return colours.get(css);
        };
        const over = (top, below) => {
            const alpha = top[3] + below[3] * (1 - top[3]);
            if (!alpha) return [0, 0, 0, 0];
            const mix = (at) => (top[at] * top[3] + below[at] * below[3] * (1 - top[3])) / alpha;
            return [mix(0), mix(1), mix(2), alpha];
        };
        const faded = (paint, share) => [paint[0], paint[1], paint[2], paint[3] * share];
        const luminance = (paint) => {
            const [red, green, blue] = paint.slice(0, 3).map((value) =>
                value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
            return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
        };
        const ratio = (one, other) => {
            const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
            return (high + 0.05) / (low + 0.05);
        };

        // The areas of a drawing in the order in which they are painted.
        const drawings = new Map();
        const areas = (svg) => {
            if (!drawings.has(svg)) drawings.set(svg, [...svg.querySelectorAll('path, rect, circle, ellipse, polygon, use, image')].flatMap((element) => {
                if (element.closest('defs, clipPath, marker, pattern, mask, symbol')) return [];
                const style = getComputedStyle(element);
                const box = element.getBoundingClientRect();
                if (style.fill === 'none' && element.tagName !== 'image' || style.visibility === 'hidden' || !box.width || !box.height) return [];
                return [{element, box, fill: style.fill, opacity: Number(style.fillOpacity) * within(element, svg)}];
            }));
            return drawings.get(svg);
        };
        const within = (element, svg) => {
            let opacity = 1;
            for (let at = element; at && at !== svg; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
            return opacity;
        };
        const holds = ({element, box}, x, y) => {
            if (x < box.left || x > box.right || y < box.top || y > box.bottom) return false;
            if (element.tagName === 'image') return true;
            if (element.tagName === 'use') // a marker
                return ((x - box.x) / box.width * 2 - 1) ** 2 + ((y - box.y) / box.height * 2 - 1) ** 2 <= 1;
            return element.isPointInFill(new DOMPoint(x, y).matrixTransform(element.getScreenCTM().inverse()));
        };
        // What is painted below a text at a place, or null if that is a picture.
        const below = (element, svg, x, y) => {
            let paint = [0, 0, 0, 0];
            for (const area of areas(svg)) {
                if (area.element.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_PRECEDING) break;
                if (!holds(area, x, y)) continue;
                if (area.element.tagName === 'image' || area.fill.startsWith('url')) return null;
                paint = over(faded(colour(area.fill), area.opacity), paint);
            }
            return paint;
        };
        const places = (box) => [0.2, 0.5, 0.8].map((share) => box.width >= box.height
            ? [box.x + share * box.width, box.y + box.height / 2] : [box.x + box.width / 2, box.y + share * box.height]);
        const onPage = (text, behind, element) => { // the two colours as they are seen
            for (let at = element; at; at = at.parentElement) {
                const style = getComputedStyle(at);
                if (style.backgroundImage !== 'none' && behind[3] < 1) return null;
                const ground = colour(style.backgroundColor);
                [text, behind] = [text, behind].map((paint) => faded(over(paint, ground), Number(style.opacity)));
            }
            const canvas = colour(getComputedStyle(document.body).backgroundColor);
            return [over(text, canvas), over(behind, canvas)];
        };

        const weak = new Map();
        for (const [text, element] of this.texts(root)) {
            const style = getComputedStyle(element);
            const svg = element.ownerSVGElement;
            const scale = svg ? Math.hypot(element.getScreenCTM().a, element.getScreenCTM().b) : 1;
            const size = parseFloat(style.fontSize) * scale;
            const asked = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? leastOfLarge : least;
            let pairs;
            if (svg) {
                if (style.fill === 'none') continue;
                const paint = faded(colour(style.fill), Number(style.fillOpacity) * within(element, svg));
                const grounds = places(element.getBoundingClientRect()).map(([x, y]) => below(element, svg, x, y));
                pairs = grounds.map((ground) => ground && onPage(over(paint, ground), ground, svg));
            } else pairs = [onPage(colour(style.color), [0, 0, 0, 0], element)];
            for (const pair of pairs) {
                if (!pair || ratio(...pair) >= asked - 0.005) continue;
                const hex = pair.map((paint) => `#${paint.slice(0, 3).map((value) => Math.round(value).toString(16).padStart(2, '0')).join('')}`);
                weak.set(`${hex.join(' on ')} (${ratio(...pair).toFixed(2)})`, `${svg ? 'in a drawing' : element.closest('[class]')?.className || element.tagName}: ${text.slice(0, 30)}`);
            }
        }
        return [...weak].map(([pair, where]) => `too little contrast: ${pair}, ${where}`);
    },

    // Each value of each control of an explorer, with the other controls at their start: [number of the control, value].
    settings(explorer) {
        const controls = [...explorer.querySelectorAll('.tl-controls input, .tl-controls select')];
        return controls.flatMap((control, number) => {
            const values = control.type === 'range' ? Number(control.max) + 1 : control.length;
            return Array.from({length: values}, (_, value) => [number, value]);
        });
    },
    // Move an explorer to such a setting. Returns its name once the picture is there, or "" if there is none.
    async moved(explorer, number, value) {
        const controls = [...explorer.querySelectorAll('.tl-controls input, .tl-controls select')];
        controls.forEach((control, at) => { control.value = at === number ? value : control.dataset.start; });
        const key = controls.map((control) => control.value).join(',');
        controls[number].dispatchEvent(new Event('input', {bubbles: true}));
        for (let turn = 0; turn < 300; turn++) {
            if (explorer.querySelector('.tl-error')) return '';
            if (explorer.dataset.shown === key) {
                const label = explorer.querySelector(`label[for="${controls[number].id}"]`).textContent;
                return `${label} = ${controls[number].nextElementSibling?.value ?? controls[number].selectedOptions[0].text}`;
            }
            await new Promise((done) => setTimeout(done, 10));
        }
        throw new Error(`no picture of ${key} within three seconds`);
    },

    // Where the keyboard can go, in the order of the document.
    stops() {
        const all = [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')];
        return all.filter((element) => !element.disabled && element.tabIndex >= 0 &&
            element.checkVisibility({visibilityProperty: true}) &&
            !(element.type === 'radio' && !element.checked && all.some((other) => other.name === element.name && other.type === 'radio')
                && (document.querySelector(`input[name="${CSS.escape(element.name)}"]:checked`) || all.find((other) => other.name === element.name) !== element)));
    },
    look: (element) => {
        const style = getComputedStyle(element);
        return [style.boxShadow, style.backgroundColor, style.borderColor, style.color, style.textDecorationLine].join();
    },
    startTabbing() {
        window.focusCheck = {stops: this.stops(), last: null, seen: new Set(), faults: []};
        window.focusCheck.looks = new Map(window.focusCheck.stops.map((element) => [element, this.look(element)]));
        document.activeElement?.blur?.();
    },
    // Judge the element that has the focus. Returns whether the keyboard has been everywhere.
    tabbed() {
        const {stops, looks, seen, faults, last} = window.focusCheck;
        const element = document.activeElement;
        if (element === document.body || seen.has(element)) return true;
        const name = element.outerHTML.replace(/\s+/g, ' ').slice(0, 80);
        seen.add(element);
        if (last && last.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_PRECEDING) faults.push(`the focus goes back: ${name}`);
        const box = element.getBoundingClientRect();
        const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
        const inside = box.width > 1 && box.height > 1 && box.right > 0 && box.bottom > 0 && box.left < innerWidth && box.top < innerHeight;
        if (!inside) faults.push(`the focus is where nothing is seen: ${name}`);
        else if (x > 0 && x < innerWidth && y > 0 && y < innerHeight) {
            const above = document.elementFromPoint(x, y);
            if (above && !element.contains(above) && !above.contains(element) && ![...element.labels ?? []].some((label) => label.contains(above)))
                faults.push(`the focus is below something else: ${name}, ${above.outerHTML.slice(0, 60)}`);
        }
        const style = getComputedStyle(element);
        const outlined = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0;
        if (!outlined && looks.has(element) && looks.get(element) === this.look(element)) faults.push(`the focus is not seen on ${name}`);
        window.focusCheck.last = element;
        return false;
    },
    afterTabbing() {
        const {stops, seen, faults} = window.focusCheck;
        for (const element of stops)
            if (!seen.has(element)) faults.push(`the keyboard cannot reach ${element.outerHTML.replace(/\s+/g, ' ').slice(0, 80)}`);
        return faults;
    },
})
