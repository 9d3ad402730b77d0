// What a library built for another LibTorch looks like to the loader: a function that nobody has, whose address is wanted
// at once.
extern "C" int function_of_another_library();
int (*address)() = function_of_another_library;
