// What a token's colour says: eight levels, from 0 (what surprised the model) to 7 (what it was sure of).
// generate_face.py has the same levels; panel.css has their colours, after viridis.

const LEVELS = 8;
const SCALES = {
  probability: { low: '0', high: '1', level: (token) => Math.floor(token.probability * LEVELS) },
  rank: { low: 'over 64', high: '1', level: (token) => LEVELS - 1 - Math.ceil(Math.log2(Math.max(1, token.rank))) },
  entropy: { low: 'over 5 nats', high: '0', level: (token) => LEVELS - 1 - Math.floor(token.entropy / 0.75) },
};

function levelClass(token, colour) {
  const scale = SCALES[colour];
  return scale ? ` nbllm-v${Math.min(LEVELS - 1, Math.max(0, scale.level(token)))}` : '';
}

// A choice of one word out of a few, with the keys of radio buttons, and the scale of what is chosen.
function colourChoice(choose) {
  const group = `colour-${Math.random().toString(36).slice(2)}`;
  const scale = el('span', { class: 'nbllm-scale', 'aria-hidden': 'true' });
  const inputs = {};
  const root = el('div', { class: 'nbllm-label nbllm-choice', role: 'radiogroup', 'aria-label': 'colour of the tokens' }, 'colour:');
  for (const name of [...Object.keys(SCALES), 'none']) {
    const input = el('input', { type: 'radio', name: group, onchange: () => choose(name) });
    input.addEventListener('keydown', (event) => event.stopPropagation());
    inputs[name] = input;
    root.append(el('label', {}, input, name));
  }
  root.append(scale);
  const set = (colour) => {
    inputs[colour].checked = true;
    const ends = SCALES[colour];
    scale.hidden = !ends;
    if (!ends) return;
    const swatches = Array.from({ length: LEVELS }, (_, place) => el('i', { class: `nbllm-v${place}` }));
    scale.replaceChildren(`${ends.low} `, ...swatches, ` ${ends.high}`);
  };
  return { root, set };
}
