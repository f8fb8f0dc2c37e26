// Boost.JSON's own code, compiled once, alone in its object file.
#include <boost/json/src.hpp>
