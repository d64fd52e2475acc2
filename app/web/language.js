// Whether a text looks English. The embedded model was trained on English only.

// Frequent words, without those that are frequent in both. A name or a quotation of another language
// in an English text has fewer of them than the text has of English.
const ENGLISH = words(`
  the a an to and of in on is it it's for with you that this at but have was not so are be i my me
  your we they he she all just from what when who will can do don't i'm as if about out up no like
  get now very good great bad love best worst thanks`);
const OTHER = words(`
  der das und ist ich nicht auch auf aus mit ein eine einen kein keine für von zu zum bei dem sind wir
  ihr mir mich dich dir sich sehr aber noch schon wenn wird nur mehr muss bin mein meine dass danke
  heute morgen immer
  le les des du et une un je pas ne dans pour sur qui que avec mais nous vous il elle c'est j'ai très
  plus merci suis sont cette bien aux par
  el los las una por para con como muy esta este está es lo mi se su pero gracias más hay todo nada
  bueno buena estoy tengo soy quiero mejor
  não uma você muito mais isso meu minha obrigado são ele ela foi tem ao na bem só já pra que tá vou
  hoje quero esse essa
  il di che è non sono gli della nel questo questa alla anche più molto grazie tutto bello ci si mio
  sei ma fatto cosa
  de het een niet van ik je ook maar voor zijn wat goed hebben
  och det är att jag inte som på av
  ve bir bu çok için değil güzel
  nie się jest że jak tak bardzo dziękuję
  hai nahi kya ki ka ke aur hum mein koi bhi yeh hoon kar
  yang dan tidak ini itu saya dengan untuk sangat`);
const ACCENT = /(?=[^a-z'])\p{L}/u;
const LATIN = /\p{Script=Latin}/u;

function words(text) {
  const cleaned = text.toLowerCase().replace(/(@|#|https?:)\S*/g, " ").replaceAll("’", "'");
  return new Set(cleaned.match(/\p{L}+('\p{L}+)*/gu));
}

// False if most letters are not Latin, or if other languages' words outnumber the English ones. A word
// with an accent counts half, because English has some. It is a hint: a text without any of these
// words counts as English.
export function looksEnglish(text) {
  const letters = text.match(/\p{L}/gu) ?? [];
  if (letters.filter((letter) => !LATIN.test(letter)).length > letters.length / 2) return false;
  let english = 0;
  let other = 0;
  for (const word of words(text)) {
    if (ENGLISH.has(word)) english += 1;
    else if (OTHER.has(word)) other += 1;
    else if (ACCENT.test(word)) other += 0.5;
  }
  return other < 1 || other <= english;
}
