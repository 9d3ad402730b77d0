from tessera_dit import main

main()
