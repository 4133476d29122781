// A library in C++: counts the words of a text. curl --data-binary @README.md http://127.0.0.1:4000/libcgi-bin/words.so
//
// The server finds the three functions by their names. C++ gives a function another name than C does ("mangling").
// ewe_libcgi.h declares them extern "C", and so these have the names of C. No exception may leave processfunc().
#include <ewe_libcgi.h>

#include <algorithm>
#include <exception>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

static void answer(const std::string &text)
{
    std::map<std::string, int> counts;
    std::istringstream stream(text);
    for (std::string word; stream >> word;)
        counts[word]++;

    std::vector<std::pair<std::string, int>> words(counts.begin(), counts.end());
    std::stable_sort(words.begin(), words.end(), [](auto &one, auto &other) { return one.second > other.second; });
    if (words.size() > 10)
        words.resize(10);

    lputs("Content-Type: text/plain; charset=utf-8\n\n");
    lprintf("%zu different words\n", counts.size());
    for (auto &[word, count] : words)
        lprintf("%5d %s\n", count, word.c_str());
}

void processfunc(char *input)
{
    try {
        answer(input ? input : "");
    } catch (const std::exception &fault) { // no memory for so long a text
        lprintf("Status: 500 Internal Server Error\nContent-Type: text/plain\n\n%s\n", fault.what());
    }
}
