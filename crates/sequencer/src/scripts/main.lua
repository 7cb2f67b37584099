-- Appended to every script of this folder, after objects.lua. All keys of objects begin like the first key.
objects.at(string.match(KEYS[1], '^(.*)queued$'))
return main(objects)
