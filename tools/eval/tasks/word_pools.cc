#include "tools/eval/tasks/word_pools.h"

#include <fstream>
#include <sstream>
#include <string_view>
#include <unordered_set>

#include "fmt/format.h"

namespace tokenbutler {
namespace {

// No word is in two of these lists.
constexpr std::string_view kAdjectives =
    "able absent abundant active actual adept aged agile airy alert alike alive ample amused "
    "ancient angry anxious arctic arid ashen atomic austere aware awkward azure bald bare basic "
    "bitter blank bland bleak blind blond blunt bold bony brave brief bright brisk broad bronze "
    "brown busy calm candid careful casual cautious certain cheap cheerful chief chilly civil "
    "clean clear clever clumsy coarse cold colossal common compact complex constant content cool "
    "cosmic costly cozy crimson crisp crooked crude cruel cubic curious curly current curved damp "
    "daring dark dear decent deep delicate dense different diligent dim direct dirty distant "
    "divine double dreary dry dual dull dusty eager early earnest eastern easy elastic elder "
    "elegant empty endless enormous equal eternal even exact exotic faint fair faithful false "
    "familiar famous fancy far fast fatal fearless feeble fertile festive few fierce final fine "
    "firm fiscal fit flaky flat fluffy fluid foggy foolish foreign formal forward fragile frank "
    "free frequent fresh friendly frosty frozen frugal full funny furry future fuzzy gaunt "
    "generous gentle genuine giant gifted glad gleaming global gloomy glossy golden good graceful "
    "grand grateful grave greasy great greedy green grey grim gritty gross grumpy guilty handy "
    "happy hard harmless harsh hasty hazy healthy heavy helpful hidden high hoarse hollow honest "
    "hopeful huge humble humid hungry icy ideal idle ill immense inner innocent instant intact "
    "ivory jagged jolly joyful juicy junior just keen kind known lame large last late lavish lazy "
    "lean legal lengthy level light likely limber limp linear liquid little lively local lone "
    "long loose loud loyal lucky lunar lush magic main major manual maroon marine mature meager "
    "mean medium mellow mental merry messy mighty mild minor mint misty mobile modern modest "
    "moist moral muddy multiple murky musical mute muted mystic naive narrow nasty native natural "
    "neat nervous new nimble noble noisy normal northern novel numb obvious odd official old "
    "olive opaque open orange orderly ordinary organic oval pale partial patient peaceful "
    "peculiar perfect petty plain plastic playful pleasant plump polite poor popular precious "
    "precise pretty prime private profound prompt proper proud public pure purple quaint quick "
    "quiet quirky rapid rare raw ready real recent red regal regular remote rich rigid ripe "
    "robust rocky rotten rough round royal rude rugged rural rustic rusty sacred sad safe salty "
    "sandy scarce scarlet secret secure senior serene serious severe shady shaky shallow sharp "
    "shiny short shy silent silky silly silver similar simple sincere single skinny sleepy "
    "slender slick slim slow small smart smoky smooth snowy sober social soft solar sole solemn "
    "solid somber sour southern spare special spicy spiral splendid spry square stable stale "
    "stark steady steep stern sticky stiff still stony stormy straight strange strict strong "
    "sturdy subtle sudden sunny superb swift tall tame tart tender tense thick thin thirsty "
    "thorough tidy tight timid tiny tired total tough tranquil tricky tropical true trusty ugly "
    "ultimate uneven uniform unique united upper urban urgent useful usual vacant vague valid "
    "vast velvet verbal vibrant violet virtual visible vital vivid vocal warm wary watery weak "
    "wealthy weary weird western wet white whole wicked wide wild willing windy wise witty wooden "
    "woolly worthy young zealous";

constexpr std::string_view kNouns =
    "acorn acre actor album alley almond anchor angle ankle answer antler anvil apple apron arch "
    "archer arena arrow artist atlas attic autumn badge badger bakery balcony ballad bamboo banjo "
    "banker banner barley barn barrel basin basket bay beach beacon bead beaver bell belt bench "
    "berry bicycle birch bishop blade blanket blossom boat bolt bonfire bottle boulder bow bowl "
    "bracelet bramble branch bread brick bridge broom brush bucket buckle bulb burrow bush "
    "butcher butter button cabbage cabin cable cactus cake camel camera camp canal candle canoe "
    "canvas canyon cape captain caravan cargo carpet carriage cart carton castle cat cattle cave "
    "cedar cellar cello chain chalk chapel chariot cherry chest chestnut chicken chimney chisel "
    "choir cinema circle circus citizen clam clarinet claw clay cliff clinic cloak clock cloth "
    "cloud clover coach coal coast coat cobbler coconut coffee coin collar comet compass concert "
    "copper coral corn corner cottage cotton council country court cousin cow crab cradle crane "
    "crater crayon creek cricket crop crow crown crystal cup cupboard curtain cushion cymbal "
    "daisy dancer dawn deer delta desert desk diamond diary doctor dolphin donkey door dragon "
    "drawer dream dress drum duck dune eagle easel echo eel elbow elephant elk elm ember engine "
    "envelope estate evening fabric factory falcon family farm farmer feast feather fence fern "
    "ferry fiddle field finch finger fire fish flag flame flask fleet flint flood floor flour "
    "flower flute foal fog forest forge fork fort fossil fountain fox frog frost fruit funnel "
    "galaxy gallery garden garlic garment gate gazelle gem geyser ginger giraffe glacier glass "
    "glove goat gold goose gorge grain granite grape grass gravel grove guard guest guitar gull "
    "hall hammer hamster harbor harp harvest hat hawk hay hazel heart heather hedge helmet herald "
    "herb hermit heron hill hinge hive honey hood hook horizon horn horse hotel hound house "
    "hunter hut ink inn insect iris iron island ivy jacket jaguar jar jasmine jelly jewel journal "
    "journey judge jug jungle kettle key kingdom kitchen kite kitten knight knot ladder lagoon "
    "lake lamb lamp lantern lark laundry lava lawn leaf leather ledger lemon lens leopard letter "
    "lettuce library lichen lighthouse lily lime linen lion lizard llama lobster locket loft log "
    "loom lotus lumber lute lynx machine magnet magpie mailbox mammoth mango mantle map maple "
    "marble market marsh mask mast match meadow meal medal melody melon mentor merchant meteor "
    "mill miner mineral mirror mitten moat mole monk monkey moon moose morning mortar mosaic moss "
    "moth mountain mouse mule museum mushroom music mustard nail napkin nectar needle nephew nest "
    "nettle night noodle notebook nurse nut oak oar oasis oat ocean octopus office onion orbit "
    "orchard orchid organ otter oven owl ox oyster paddle page paint palace palm pan panther "
    "paper parade parcel park parrot parsley party pasture path pavilion peach peacock peak pear "
    "pearl pebble pelican pen pencil penguin pepper piano pickle picnic pier pigeon pillar pillow "
    "pilot pine pipe pirate pistachio pitcher planet plank plaster plate plow plum pocket poem "
    "poet pond pony poplar porch porcupine port postman potato potter powder prairie prince "
    "printer prism puddle pumpkin pupil puppet puzzle pyramid quarry quartz queen quill quilt "
    "quiver rabbit radish raft rail rain raisin ranch raven razor reed reef ribbon rice riddle "
    "ring river road robe robin rock rocket roof root rope rose ruby rug sack saddle sail sailor "
    "salad salmon salt sand sandal sapphire sardine satchel sauce saucer scale scarf school scout "
    "screen seal seed shadow shark shed sheep shelf shell shepherd shield ship shoe shore shovel "
    "shrimp shrub sickle signal silk singer sister sketch ski skull sled slipper sloth smith "
    "smoke snail snow soap soil soldier song soup spade sparrow spear sphere spice spider spinach "
    "spire sponge spoon spring spruce squash squid squirrel stair stamp star statue steam steel "
    "stem stew stone stool storm stove stranger straw stream street string student sugar suitcase "
    "summer summit sunset swallow swamp swan sweater sword table tailor tapestry target tavern "
    "tea teacher temple tent terrace theater thicket thimble thistle thorn throne thumb thunder "
    "ticket tide tiger timber toast tomato torch tortoise tower town trail train tram treasure "
    "tree trench trout trumpet trunk tulip tunnel turkey turnip turtle twig twilight uncle valley "
    "vase vault veil vessel village vine vineyard violin visitor volcano voyage wagon waiter wall "
    "walnut walrus warrior wasp watch water wax weasel weaver wedge well whale wharf wheat wheel "
    "whisker whistle widow willow window wing winter witness wizard wolf wood wool word workshop "
    "worm wreath wren yard yarn yogurt zebra zipper";

constexpr std::string_view kVerbs =
    "accept achieve acquire adapt add adjust admire admit adopt advise afford agree allow amaze "
    "announce appear applaud apply approve argue arise arrange arrest arrive ask assemble assist "
    "assure attach attend attract avoid awake bake balance become beg begin behave believe belong "
    "bend blame bless blink boast boil borrow bounce breathe bring build bundle burn buy "
    "calculate call carry carve catch celebrate change charge chase chew choose chop claim clap "
    "climb cling close collect combine come command compare compete complain compose conclude "
    "confess connect consider construct contain continue convince cook copy correct cough count "
    "cover crawl create crouch cry cultivate dance dare decide declare decorate defend delay "
    "deliver demand deny depart depend describe deserve design desire detect develop dig dine "
    "disagree discover discuss dive divide draw drift drink drive drop earn eat educate embrace "
    "employ encourage enjoy enter entertain escape examine exist expand expect explain explore "
    "express extend fade fall fasten feed feel fetch fight fill find finish float flow fly fold "
    "follow forbid forget forgive found gather gaze give glide glow govern grab grasp greet grin "
    "grind grow guess guide hang happen harm hear heat help hesitate hide hire hold hope hug hum "
    "hurry imagine improve include increase inform inherit inquire insist inspect inspire invent "
    "invite jog join juggle jump justify kick kneel knit knock know laugh launch lead leap learn "
    "leave lend lift linger listen live load locate look lose love maintain make manage march "
    "measure meet melt mend mention mix moan move mow multiply murmur navigate need nod notice "
    "obey observe obtain offer operate order owe own pack pardon participate pass pause peel "
    "perform persuade pick plan plant play plead please pluck point polish ponder pour practice "
    "praise pray preach prefer prepare present pretend prevent proceed produce promise protect "
    "prove provide pull punish push question quote race raise reach read realize recall receive "
    "recite recommend record recover reduce refuse regret rejoice relax release rely remain "
    "remember remind remove repair repeat replace reply report request rescue resist respond rest "
    "retire return reveal ride rinse roam roar roast row rule run rush scatter scold scratch "
    "search seek seize select send separate serve settle sew shake shape share shelter shine "
    "shiver shout shrink sigh sing sink sit skate sleep slide smile sneeze snore soar solve speak "
    "spell spend spill spin splash spread stand stare start stay steal stir stitch stop stretch "
    "stroll struggle study succeed suggest supply support surprise surround survive sway sweep "
    "swim swing taste teach tear tell tempt thank think thrive throw tie touch trace trade "
    "translate travel tremble trot trust try tumble turn twist understand unite unload unlock "
    "untie unwrap use vanish visit wait wake walk wander want warn wash waste wave weave weigh "
    "welcome whisper win wink wipe wish wonder work worry wrap wrestle write yawn yell yield";

std::vector<std::string> Words(std::string_view text) {
  std::istringstream in{std::string(text)};
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

absl::StatusOr<std::vector<std::string>> ReadWords(const std::string& path) {
  std::ifstream in(path);
  if (!in) return NotFoundError("{} cannot be read", path);
  std::vector<std::string> words;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) words.push_back(line);
  }
  if (words.empty()) return InvalidArgumentError("{} has no words, one a line", path);
  return words;
}

}  // namespace

const WordPools& BuiltInWords() {
  static const auto* const kPools = new WordPools{.adjectives = Words(kAdjectives),
                                                  .nouns = Words(kNouns),
                                                  .verbs = Words(kVerbs),
                                                  .source = "built in"};
  return *kPools;
}

absl::StatusOr<WordPools> ReadWordPools(const std::string& folder) {
  WordPools pools{.source = folder};
  ASSIGN_OR_RETURN(pools.adjectives, ReadWords(folder + "/adjectivelist.txt"));
  ASSIGN_OR_RETURN(pools.nouns, ReadWords(folder + "/nounlist.txt"));
  ASSIGN_OR_RETURN(pools.verbs, ReadWords(folder + "/verblist.txt"));
  return pools;
}

std::vector<std::string> DistinctWords(const WordPools& pools, int count, SeededRandom* random) {
  std::vector<std::string> all;
  std::unordered_set<std::string> seen;
  for (const auto* pool : {&pools.nouns, &pools.adjectives, &pools.verbs}) {
    for (const std::string& word : *pool) {
      if (seen.insert(word).second) all.push_back(word);
    }
  }
  // Compounds ("riverstone") once the words are used up.
  while (static_cast<int>(all.size()) < count) {
    std::string compound = random->Pick(pools.nouns);
    do {
      compound += random->Pick(pools.nouns);
    } while (!seen.insert(compound).second);
    all.push_back(std::move(compound));
  }
  random->Shuffle(&all);
  all.resize(count);
  return all;
}

}  // namespace tokenbutler
