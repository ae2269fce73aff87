#include "tools/eval/tasks/prose.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

namespace tokenbutler {
namespace {

using Words = std::vector<std::string>;

// A word is written in a frame as the letter of its list in angle brackets. None of what follows
// "a" in a frame begins with a vowel.
const Words& List(char letter) {
  static const auto* const kPeople = new Words{
      "baker",  "carpenter", "gardener",  "teacher",   "miller", "sailor",     "doctor",   "weaver",
      "farmer", "painter",   "librarian", "shepherd",  "cook",   "clockmaker", "musician", "mason",
      "tailor", "fisherman", "postman",   "beekeeper", "judge",  "carter",     "potter",   "nurse"};
  static const auto* const kPlaces = new Words{
      "market", "harbor",  "old bridge", "orchard", "town hall", "river",  "lighthouse", "barn",
      "garden", "station", "chapel",     "school",  "quarry",    "forest", "workshop",   "square",
      "inn",    "meadow",  "windmill",   "cellar",  "library",   "canal",  "ferry",      "bakery"};
  static const auto* const kThings = new Words{
      "lamp",   "basket",  "letter", "ladder", "wooden box", "kettle",  "map",    "blanket",
      "barrel", "candle",  "mirror", "chair",  "notebook",   "lantern", "violin", "sack of flour",
      "wheel",  "curtain", "bell",   "bucket", "rope",       "clock",   "cart",   "loaf of bread"};
  static const auto* const kAdjectives = new Words{
      "patient", "copper",  "quiet",  "heavy",    "careful", "narrow", "cheerful", "dusty",
      "broken",  "curious", "silver", "friendly", "tired",   "large",  "familiar", "crooked",
      "clever",  "pale",    "sturdy", "gentle",   "painted", "small",  "generous", "forgotten"};
  static const auto* const kDeeds = new Words{
      "carried", "repaired", "found",   "sold",    "painted",   "borrowed", "cleaned", "hid",
      "bought",  "moved",    "watched", "counted", "described", "covered",  "lifted",  "brought"};
  static const auto* const kTimes =
      new Words{"before sunrise", "in the afternoon", "during the storm", "at the end of the week",
                "after the rain", "on market day",    "late at night",    "in early spring",
                "without a word", "for the winter",   "with great care",  "as usual"};
  static const auto* const kWeather = new Words{
      "the wind turned to the north", "snow began to fall",         "the sun came out",
      "the bells rang twice",         "nobody was in the street",   "the fog had lifted",
      "the water rose slowly",        "the lamps were already lit", "the harvest was over",
      "the road was still wet",       "the geese flew south",       "everyone had gone home"};
  switch (letter) {
    case 'P':
      return *kPeople;
    case 'L':
      return *kPlaces;
    case 'T':
      return *kThings;
    case 'A':
      return *kAdjectives;
    case 'D':
      return *kDeeds;
    case 'W':
      return *kTimes;
    default:
      return *kWeather;
  }
}

const Words& Frames() {
  static const auto* const kFrames =
      new Words{"The <A> <P> <D> a <T> near the <L> <W>.",
                "When <S>, the <P> <D> the <A> <T>.",
                "There was a <A> <T> in the <L>, and the <P> <D> it <W>.",
                "Nobody at the <L> remembered who <D> the <T> <W>.",
                "The <P> and the <P> met at the <L> <W> and spoke about the <T>.",
                "Because <S>, the <P> stayed at the <L> and <D> a <A> <T>.",
                "The <A> <T> belonged to the <P>, who <D> it <W>.",
                "It took the <P> a whole morning to reach the <L>, where <S>.",
                "Behind the <L> stood a <A> <T> that the <P> <D> <W>.",
                "Most people thought that the <P> <D> the <T>, but it was the <P>.",
                "Every year the <P> <D> a <T> and took it to the <L> <W>.",
                "<S> while the <P> <D> the <A> <T>.",
                "The road from the <L> to the <L> was long, and <S>.",
                "A <A> <P> <D> the <T>, and then <S>.",
                "The <T> in the <L> was <A>, so the <P> <D> another one <W>.",
                "If <S>, the <P> usually went to the <L> with a <A> <T>.",
                "Children played with the <T> by the <L> until <S>.",
                "The <P> <D> the <T> first and the <A> <T> afterwards.",
                "Although <S>, the <P> <D> the <T> at the <L>.",
                "<W>, the <P> <D> a <T> for the <A> <P> from the <L>."};
  return *kFrames;
}

bool EndsSentence(std::string_view word) {
  while (!word.empty() &&
         (word.back() == '"' || word.back() == '\'' || word.back() == ')' || word.back() == ']')) {
    word.remove_suffix(1);
  }
  return !word.empty() && (word.back() == '.' || word.back() == '?' || word.back() == '!');
}

void AddWords(const std::string& text, Words* words) {
  std::istringstream in(text);
  for (std::string word; in >> word;) words->push_back(word);
}

}  // namespace

std::string ProseSentence(SeededRandom* random) {
  const std::string& frame = random->Pick(Frames());
  std::string sentence;
  for (size_t i = 0; i < frame.size(); ++i) {
    if (frame[i] != '<') {
      sentence += frame[i];
      continue;
    }
    // No word twice: "the farmer and the farmer" is nobody's sentence.
    std::string word = random->Pick(List(frame[i + 1]));
    while (sentence.find(word) != std::string::npos) word = random->Pick(List(frame[i + 1]));
    sentence += word;
    i += 2;
  }
  if (sentence[0] >= 'a' && sentence[0] <= 'z') sentence[0] += 'A' - 'a';
  return sentence;
}

Prose GeneratedProse(uint64_t seed, int num_words) {
  Prose prose{.source = "generated"};
  SeededRandom random(seed, "prose", 0);
  while (static_cast<int>(prose.words.size()) < num_words) {
    AddWords(ProseSentence(&random), &prose.words);
  }
  return prose;
}

absl::StatusOr<Prose> ReadProse(const std::vector<std::string>& paths) {
  Prose prose;
  for (const std::string& path : paths) {
    std::ifstream in(path, std::ios::binary);
    if (!in) return NotFoundError("{} cannot be read", path);
    AddWords({std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()}, &prose.words);
    if (!prose.source.empty()) prose.source += ", ";
    prose.source += std::filesystem::path(path).filename().string();
  }
  if (prose.words.empty()) {
    return InvalidArgumentError("the text to hide things in has no words: {}", prose.source);
  }
  return prose;
}

std::vector<std::string> Sentences(const Prose& prose, int num_words) {
  std::vector<std::string> sentences;
  std::string sentence;
  for (int i = 0; i < num_words; ++i) {
    const std::string& word = prose.words[i % prose.words.size()];
    if (!sentence.empty()) sentence += ' ';
    sentence += word;
    if (EndsSentence(word) || i + 1 == num_words) {
      sentences.push_back(std::move(sentence));
      sentence.clear();
    }
  }
  return sentences;
}

}  // namespace tokenbutler
