# A filter of doxygen: puts the names of a header into the group of the header's folder, an area of the API reference.
BEGIN {
  title["core"] = "Core"; title["data"] = "Data"; title["comm"] = "Communicate"; title["elastic"] = "Elastic jobs"
  title["ps"] = "Parameter server"; title["train"] = "Train"; title["serve"] = "Serve"; title["torch"] = "LibTorch"
}
FNR == 1 {
  path = FILENAME
  sub(/^.*include\/muster\//, "", path)
  area = path ~ /\// && path !~ /-inl/ ? substr(path, 1, index(path, "/") - 1) : ""
}
(area in title) && opened && /^}+ *\/\/ namespace muster/ { print "/** @} */"; opened = 0 }
{ print }
(area in title) && /^namespace muster {/ && !/}$/ { printf "/** \\addtogroup %s %s\n@{ */\n", area, title[area]; opened = 1 }
